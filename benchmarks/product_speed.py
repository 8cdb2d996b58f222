"""Matrix products on one core of a CPU, by torch's own way (MKL) and by oneDNN: what `modules/linear.py` decides by.

python -m benchmarks.product_speed
"""

import time
from typing import Callable

import torch

SHAPES = ((2048, 256, 256), (2048, 256, 512), (2048, 512, 256), (2048, 256, 8000), (1024, 512, 2048))
REPEATS, PRODUCTS = 5, 20


def fastest(product: Callable[[], object]) -> float:
    """The processor time of one product in seconds, the least of several measurements."""
    seconds = []
    for _ in range(1 + REPEATS):  # the first warms up
        start = time.process_time()
        for _ in range(PRODUCTS):
            product()
        seconds.append((time.process_time() - start) / PRODUCTS)
    return min(seconds[1:])


def main() -> None:
    """Print a Markdown table in billions of operations a second."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}")
    print("| rows × input × output | torch | oneDNN |\n| --- | --- | --- |")
    for rows, inputs, outputs in SHAPES:
        x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        dense, of_onednn = (x, weight), (x.to_mkldnn(), weight.to_mkldnn())
        operations = 2e-9 * rows * inputs * outputs
        speeds = [
            operations / fastest(lambda pair=pair: torch.nn.functional.linear(*pair))  # type: ignore[misc]
            for pair in (dense, of_onednn)
        ]
        print(f"| {rows} × {inputs} × {outputs} | " + " | ".join(f"{speed:.0f}" for speed in speeds) + " |")


if __name__ == "__main__":
    main()

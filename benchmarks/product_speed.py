"""The speed of matrix products on one CPU core, by torch itself (MKL) and by oneDNN: the basis of `modules/linear.py`.

python -m benchmarks.product_speed
"""

import time
from typing import Callable

import torch

SHAPES = ((2048, 256, 256), (2048, 256, 512), (2048, 512, 256), (2048, 256, 8000), (1024, 512, 2048))
REPEATS, PRODUCTS = 5, 20


def fastest(product: Callable[[], object]) -> float:
    """The processor time of one product in seconds, the minimum of several measurements."""
    seconds = []
    for _ in range(1 + REPEATS):  # the first warms up
        start = time.process_time()
        for _ in range(PRODUCTS):
            product()
        seconds.append((time.process_time() - start) / PRODUCTS)
    return min(seconds[1:])


def main() -> None:
    """Print a Markdown table in billions of operations per second."""
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

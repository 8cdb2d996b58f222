"""How long a GPU's kernels take in training and in decoding, compared with those of stock fairseq's ``transformer`` of
the same size.

    python -m benchmarks.kernel_time data-bin/X -s de -t en [--arch rcg_transformer ...] [--json kernels.json]

The work is that of ``transformer_speed``. Its time is the sum of the times of all kernels and copies, which torch's
profiler gets from the GPU. The time that the host takes to launch them is not included, so a busy host does not change
the result. The ratio is that of the speeds if the GPU is slower than the host, as with large batches. If the host is
slower, the number of launches matters (``device_calls``). With ``--device cpu`` the times are those of the operators.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import device_name, get_parser
from benchmarks.transformer_speed import STOCK, add_model_options, arguments_of, build_system, first_batches, work_of
from fairseq_ctxgates.files import atomic_write


def device_seconds(run: Callable[[], Any], device: str) -> float:
    """The time that the kernels launched by a function take; on a CPU, that of the operators that it calls."""
    if device == "cpu":
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            run()
        return sum(row.self_cpu_time_total for row in profiled.key_averages()) / 1e6
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
    kernels = (row for row in profiled.key_averages() if row.device_type == DeviceType.CUDA)
    return sum(row.self_device_time_total for row in kernels if not row.is_user_annotation) / 1e6


def compare_kernels(arch: str, args: argparse.Namespace) -> Iterator[Dict[str, Any]]:
    """The times of stock's model and of an architecture of ours, in training and in decoding."""
    ours = build_system(arch, arguments_of(arch), args)  # a task loads what its model reads
    ours.task.load_dataset("train")
    batches = first_batches(ours.task, args)
    works = {system.name: work_of(system, batches, args) for system in (build_system("transformer", STOCK, args), ours)}
    for what in ("training", "decoding"):
        seconds: Dict[str, List[float]] = {}
        for name, work in works.items():
            work[what].run()  # warm up
            seconds[name] = [device_seconds(work[what].run, args.device) for _ in range(args.repeats)]
        stock, own = map(statistics.median, seconds.values())
        yield {"what": what, "seconds": seconds, "ratio": stock / own}


def row_of(result: Dict[str, Any]) -> str:
    """A result as a row of a Markdown table."""
    (beside, beside_seconds), (name, seconds) = result["seconds"].items()
    times = (f"{statistics.median(some):.3f} ({min(some):.3f}-{max(some):.3f})" for some in (seconds, beside_seconds))
    return f"| {result['what']} | {name} | {beside} | {' | '.join(times)} | {result['ratio']:.3f} |"


def main() -> None:
    """Print each result as it is found, and store all."""
    parser = get_parser(__doc__, batches=3)
    add_model_options(parser)
    parser.add_argument("--repeats", type=int, default=3, help="how many times the work is done (default: %(default)s)")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {device_name(args.device)}, {args.size}{' in bfloat16' * args.bf16}")
    print("| | model | beside | seconds (min-max) | beside | ratio |\n|" + " --- |" * 6, flush=True)
    results: List[Dict[str, Any]] = []
    for result in (result for arch in args.arch for result in compare_kernels(arch, args)):
        print(row_of(result), flush=True)
        results.append(result)
        if args.json:
            setting = {"torch": torch.__version__, "device": device_name(args.device), "options": vars(args)}
            with atomic_write(Path(args.json)) as temporary:
                temporary.write_text(json.dumps({**setting, "results": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

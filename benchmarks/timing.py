"""Compares the speeds of two models: blocks of the same work in turns, each model in a process of its own."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import platform
import re
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Type

import torch
from tqdm import tqdm

from fairseq_ctxgates.files import atomic_write

MAX_NOISE = 0.1  # the largest difference between the speeds of blocks that do the same work


class Work(NamedTuple):
    """A block of work: ``run`` does it and returns the number of tokens; ``multiply_adds`` is how many it takes."""

    run: Callable[[], int]
    multiply_adds: int


class Block(NamedTuple):
    """The time of a block in seconds, by the clock and of all processors, its tokens, and its ``Work``'s count."""

    tokens: int
    seconds: float
    processor_seconds: float
    multiply_adds: int


class SystemProcess:
    """A process with one model, with its own memory and allocator, like the process of one of fairseq's commands.
    Several such processes can get ready at the same time.

    Args:
        device: the device that the model runs on
        build: builds the model in the process and returns its work by name; a function of a module
        arguments: the arguments for ``build``
    """

    def __init__(self, name: str, device: str, build: Callable[..., Dict[str, Work]], *arguments: object) -> None:
        self.name = name
        # It is not forked from this process, which may have threads, but from one that has only imported the packages.
        # Importing them asks for GPUs; a process that is forked afterwards can use none, hence "spawn".
        context: Any = multiprocessing.get_context("forkserver" if device == "cpu" else "spawn")
        context.set_forkserver_preload(["fairseq_ctxgates.models", "fairseq_ctxgates.tasks"])
        self._pipe, other_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(other_end, build, arguments), daemon=True)
        self._process.start()
        other_end.close()

    def wait(self) -> None:
        """Wait until the process is ready. To be called once, before any process does timed work."""
        self._receive()

    def run(self, what: str) -> Block:
        """Do a block of work."""
        self._pipe.send(what)
        block: Block = self._receive()
        return block

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            sys.exit(f"{self.name}: its process has ended; what it said is above")

    def __enter__(self) -> SystemProcess:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, build: Callable[..., Dict[str, Work]], arguments: Any) -> None:
    """Do the work that the pipe asks for, until it is closed."""
    logging.disable(logging.INFO)
    work = build(*arguments)
    pipe.send("ready")
    while True:
        try:
            what = pipe.recv()
        except EOFError:
            return
        start, processor_start = time.perf_counter(), time.process_time()
        tokens = work[what].run()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        times = time.perf_counter() - start, time.process_time() - processor_start
        pipe.send(Block(tokens, *times, work[what].multiply_adds))


def noise_of(pairs: Sequence[Mapping[str, Block]]) -> float:
    """How much the speeds of one model's blocks, which do the same work, differ: the largest speed divided by the
    smallest, minus 1, for the model whose blocks differ most."""
    speeds = [[pair[name].tokens / pair[name].seconds for pair in pairs] for name in pairs[0]]
    return max(max(of_system) / min(of_system) - 1 for of_system in speeds)


def compare_speed(
    what: str, stock: SystemProcess, ours: SystemProcess, blocks: int, patience: int = 0
) -> Dict[str, Any]:
    """The speeds of two models, their ratio, and the ratio that their multiply-adds allow.

    Args:
        what: the name of the work
        blocks: how many times each model does the work
        patience: how many more times, at most, if the machine is not quiet. The blocks that count are consecutive, and
            are chosen by the noise within each model's own blocks, never by the ratio
    """
    pairs: List[Dict[str, Block]] = []
    for system in (stock, ours):
        system.run(what)  # warm up
    with tqdm(total=blocks + patience, desc=what, unit="block") as bar:
        while len(pairs) < blocks or (noise_of(pairs[-blocks:]) > MAX_NOISE and len(pairs) < blocks + patience):
            in_turn = (stock, ours) if len(pairs) % 2 == 0 else (ours, stock)
            pairs.append({system.name: system.run(what) for system in in_turn})
            bar.update()
    windows = [pairs[first : first + blocks] for first in range(len(pairs) - blocks + 1)]
    chosen = min(windows, key=noise_of)
    found = {name: [pair[name] for pair in chosen] for name in (stock.name, ours.name)}
    speeds = {name: [block.tokens / block.seconds for block in of_system] for name, of_system in found.items()}
    ratios = [b / a for a, b in zip(speeds[stock.name], speeds[ours.name])]
    counts = {name: of_system[0].multiply_adds for name, of_system in found.items()}
    allowed = counts[stock.name] / counts[ours.name] if counts[ours.name] else None
    return {
        "what": what,
        "tokens_per_second": {name: statistics.median(values) for name, values in speeds.items()},
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratio_by_processor_time": statistics.median(
            a.processor_seconds / b.processor_seconds for a, b in zip(found[stock.name], found[ours.name])
        ),
        "noise": noise_of(chosen),
        "blocks": {"counted": len(chosen), "run": len(pairs)},
        "multiply_adds": counts,
        "allowed_by_count": allowed,
        "of_allowed": statistics.median(ratios) / allowed if allowed else None,
    }


COLUMNS = (
    *("", "model", "beside", "tok/s", "beside tok/s", "ratio (min-max)", "by processor time", "noise"),
    *("allowed by count", "ratio / allowed"),
)


def row_of(result: Mapping[str, Any]) -> str:
    """A result as a row of a Markdown table."""
    (beside, beside_speed), (name, speed) = result["tokens_per_second"].items()
    return (
        f"| {result['what']} | {name} | {beside} | {speed:.0f} | {beside_speed:.0f} "
        f"| {result['ratio']:.3f} ({result['ratio_min']:.3f}-{result['ratio_max']:.3f}) "
        f"| {result['ratio_by_processor_time']:.3f} | {result['noise']:.1%} "
        "| " + " | ".join(_or_nothing(result[key]) for key in ("allowed_by_count", "of_allowed")) + " |"
    )


def _or_nothing(ratio: Optional[float]) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def get_parser(description: str, batches: int) -> argparse.ArgumentParser:
    """The options of a benchmark that runs models on batches of a data directory.

    Args:
        batches: the default number of batches in a block
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="binarized data directory")
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens per batch in training")
    parser.add_argument("--batches", type=int, default=batches, help="batches per block (in decoding, a fifth of it)")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--length", type=int, default=20, help="tokens that are decoded for each sentence")
    parser.add_argument("--threads", type=int, default=None, help="threads of torch (default: torch's choice)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", help="also write the results to this file")
    return parser


def add_block_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a comparison of speeds."""
    parser.add_argument("--blocks", type=int, default=9, help="consecutive blocks that count (default: %(default)s)")
    parser.add_argument(
        "--patience",
        type=int,
        default=0,
        help="run up to this many more blocks, until the consecutive blocks that count differ by less than a tenth "
        "(default: %(default)s)",
    )


def device_name(device: str) -> str:
    """The name of the GPU or of the processor; on systems other than Linux, only the kind of processor."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found[1] if found else platform.machine()


def report(results: Iterable[Dict[str, Any]], args: argparse.Namespace, size: str) -> None:
    """Print each result as it is found, and write the results from a quiet machine to ``--json``; raises SystemExit if
    the machine was not quiet for some result."""
    setting = {
        "torch": torch.__version__,
        "device": device_name(args.device),
        "threads": args.threads or torch.get_num_threads(),
        "size": size,
    }
    print("torch {torch}, {device}, {threads} threads, {size}".format(**setting))
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + " --- |" * len(COLUMNS), flush=True)
    quiet: List[Dict[str, Any]] = []
    noisy: List[Dict[str, Any]] = []
    for result in results:
        print(row_of(result), flush=True)
        (quiet if result["noise"] <= MAX_NOISE else noisy).append(result)
        if args.json and quiet:
            with atomic_write(Path(args.json)) as temporary:
                temporary.write_text(json.dumps({**setting, "results": quiet}, indent=2) + "\n", encoding="utf-8")
    if noisy:
        names = ", ".join(f"{result['what']} of {list(result['tokens_per_second'])[1]}" for result in noisy)
        noise = max(result["noise"] for result in noisy)
        sys.exit(
            f"no figures of {names}: the times of one model's blocks differ by {noise:.0%}; run this on a quiet machine"
        )

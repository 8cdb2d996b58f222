"""Training and decoding speed of a context architecture beside stock fairseq's ``transformer`` of the same size.

    python benchmarks/transformer_speed.py data-bin/X -s de -t en [--arch rcg_transformer] [--json speed.json]

Both models run in one process over the same batches, in turns of several batches each (a block). The result is the
median of the ratios of speeds of each pair of blocks, by the clock and by the time of all processors. Beside it is the
ratio that the number of multiply-adds allows. Where the times of stock's own blocks, which do the same work, differ by
more than a tenth, the machine was not quiet: the script says so, writes no file and ends with status 1.

``torch.utils.flop_counter`` counts those of one batch's matrix products, including padding (but not that of preceding
sentences), the output layer, and both passes of an encoder that reads relations. A training step counts as three
forward passes. torch before 2.3 has no such counter, and nothing is said there of what the count allows.
"""

import argparse
import json
import logging
import statistics
import sys
import time
from functools import partial
from importlib.util import find_spec
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_generator import SequenceGenerator
from tqdm import tqdm

import fairseq_ctxgates.models
import fairseq_ctxgates.tasks  # noqa: F401  both register themselves with fairseq
from fairseq_ctxgates.analysis.inference import required_streams

CAN_COUNT = find_spec("torch.nn.attention") is not None  # torch 2.3 or later
if CAN_COUNT:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

# The setting of the Multi30k experiments in examples/rcg.
SIZE = (
    "--encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256 --encoder-ffn-embed-dim 512 "
    "--decoder-ffn-embed-dim 512 --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.3"
)
MAX_NOISE = 0.1  # the largest difference between the speeds of blocks that do the same work


class System(NamedTuple):
    """A model with its task, criterion and optimizer."""

    name: str
    task: Any
    model: Any
    criterion: Any
    optimizer: torch.optim.Optimizer


def build_system(name: str, arguments: List[str], device: str, dtype: torch.dtype = torch.float32) -> System:
    """Build a model with parameters of a type, its criterion and Adam from fairseq-train's command line."""
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    model = task.build_model(cfg.model).to(device, dtype)
    return System(name, task, model, task.build_criterion(cfg.criterion), torch.optim.Adam(model.parameters(), lr=1e-4))


def first_batches(task: Any, count: int, max_tokens: int, device: str) -> List[Dict[str, Any]]:
    """The first shuffled batches of the training split, with the side streams that the task has loaded."""
    batches = task.get_batch_iterator(
        task.dataset("train"), max_tokens=max_tokens, required_batch_size_multiple=8, seed=1
    ).next_epoch_itr()
    return [utils.apply_to_sample(lambda x: x.to(device), batch) for _, batch in zip(range(count), batches)]


def net_input(system: System, batch: Dict[str, Any]) -> Dict[str, Any]:
    """The part of a batch's input that the system's model takes."""
    known = {"src_tokens", "src_lengths", "prev_output_tokens"}
    if required_streams(system.model):
        return dict(batch["net_input"])
    return {name: value for name, value in batch["net_input"].items() if name in known}


def without_padding(batch: Dict[str, Any]) -> Dict[str, Any]:
    """The batch with its preceding sentences cut to their mean length; for counting multiply-adds only."""
    preceding = batch["net_input"].get("preceding_tokens")
    if preceding is None:
        return batch
    length = round(preceding.ne(1).sum().item() / len(preceding))  # 1: fairseq's padding symbol
    return {**batch, "net_input": {**batch["net_input"], "preceding_tokens": preceding[:, -length:]}}


def train_on(system: System, batches: List[Dict[str, Any]]) -> int:
    """One optimizer step a batch; returns the number of target tokens."""
    system.model.train()
    system.criterion.train()
    for batch in ({**batch, "net_input": net_input(system, batch)} for batch in batches):
        system.optimizer.zero_grad()
        loss, sample_size, _ = system.criterion(system.model, batch)
        (loss / sample_size).backward()
        system.optimizer.step()
    return sum(batch["ntokens"] for batch in batches)


def decode(system: System, batches: List[Dict[str, Any]], beam: int, length: int) -> int:
    """Beam search to a fixed length, so that both models take the same steps; returns the number of tokens found."""
    system.model.eval()
    generator = SequenceGenerator(
        [system.model], system.task.target_dictionary, beam_size=beam, max_len_b=length, min_len=length
    )
    for batch in batches:
        generator.generate([system.model], {"net_input": net_input(system, batch)})
    return sum(len(batch["id"]) for batch in batches) * length


def multiply_adds(run: Callable[[], Any]) -> int:
    """The multiply-adds of the matrix products that a call makes; 0 where torch cannot count them."""
    if not CAN_COUNT:
        return 0
    # On a CPU the counter does not see the products of oneDNN and of attention's fused kernels.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        with torch.backends.mkldnn.flags(enabled=False):
            run()
    return counter.get_total_flops() // 2


def forward(system: System, batch: Dict[str, Any]) -> None:
    """One forward pass, every position through the output layer."""
    system.model.eval()
    system.model(**net_input(system, batch))


def compare_speed(
    what: str, stock: System, ours: System, run: Callable[[System], int], counts: Dict[str, int], blocks: int
) -> Dict[str, Any]:
    """The speeds of two systems, their ratio, and the ratio that their multiply-adds allow.

    Args:
        what: name of the measurement
        run: does the work to measure, and returns the number of tokens
        counts: the multiply-adds of each system, by its name
        blocks: how many times each system runs
    """
    speeds: Dict[str, List[float]] = {stock.name: [], ours.name: []}
    processor_seconds: Dict[str, List[float]] = {stock.name: [], ours.name: []}
    for system in (stock, ours):
        run(system)  # warm up
    for block in tqdm(range(blocks), desc=what, unit="block"):
        for system in (stock, ours) if block % 2 == 0 else (ours, stock):
            start, processor_start = time.perf_counter(), time.process_time()
            tokens = run(system)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            speeds[system.name].append(tokens / (time.perf_counter() - start))
            processor_seconds[system.name].append(time.process_time() - processor_start)
    ratios = [b / a for a, b in zip(speeds[stock.name], speeds[ours.name])]
    allowed = counts[stock.name] / counts[ours.name] if counts[ours.name] else None
    return {
        "what": what,
        "tokens_per_second": {name: statistics.median(values) for name, values in speeds.items()},
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratio_by_processor_time": statistics.median(
            a / b for a, b in zip(processor_seconds[stock.name], processor_seconds[ours.name])
        ),
        "noise": max(speeds[stock.name]) / min(speeds[stock.name]) - 1,
        "multiply_adds": counts,
        "allowed_by_count": allowed,
        "of_allowed": statistics.median(ratios) / allowed if allowed else None,
    }


def print_table(results: List[Dict[str, Any]]) -> None:
    """Print the results as a Markdown table."""
    header = ["", "model", "beside", "tok/s", "beside tok/s", "ratio (min-max)", "by processor time", "noise"]
    header += ["allowed by count", "ratio / allowed"]
    print("| " + " | ".join(header) + " |")
    print("|" + " --- |" * len(header))
    for result in results:
        (beside, beside_speed), (name, speed) = result["tokens_per_second"].items()
        print(
            f"| {result['what']} | {name} | {beside} | {speed:.0f} | {beside_speed:.0f} "
            f"| {result['ratio']:.3f} ({result['ratio_min']:.3f}-{result['ratio_max']:.3f}) "
            f"| {result['ratio_by_processor_time']:.3f} | {result['noise']:.1%} "
            "| " + " | ".join(_or_nothing(result[key]) for key in ("allowed_by_count", "of_allowed")) + " |"
        )


def _or_nothing(ratio: Optional[float]) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def get_parser(description: str, batches: int) -> argparse.ArgumentParser:
    """The options of every comparison of speeds; ``batches`` is the default for a block."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="binarized data directory")
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens a batch in training")
    parser.add_argument("--batches", type=int, default=batches, help="batches a block")
    parser.add_argument("--blocks", type=int, default=9, help="blocks that are timed")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--length", type=int, default=20, help="tokens that decoding makes of each sentence")
    parser.add_argument("--threads", type=int, default=None, help="threads of torch (default: torch's choice)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", help="also write the results to this file")
    return parser


def report(results: List[Dict[str, Any]], args: argparse.Namespace, size: str) -> None:
    """Print the results and write those of a quiet machine to ``--json``; SystemExit if it was not quiet."""
    print(f"torch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads, {size}")
    print_table(results)
    noise = max(result["noise"] for result in results)
    if noise > MAX_NOISE:
        sys.exit(f"no figures: the times of one model's blocks differ by {noise:.0%}; run this on a quiet machine")
    if args.json:
        content = {"torch": torch.__version__, "device": args.device, "size": size, "results": results}
        with open(args.json, "w", encoding="utf-8") as stream:
            json.dump(content, stream, indent=2)
            stream.write("\n")


def build_systems(args: argparse.Namespace) -> Tuple[System, System]:
    """Stock fairseq's transformer and the architecture of ``--arch``, of the same size."""
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    common = [args.data, "-s", args.source_lang, "-t", args.target_lang, "--label-smoothing", "0.1"]
    common += ["--max-tokens", str(args.max_tokens), "--share-all-embeddings", *args.size.split()]
    stock = build_system(
        "transformer",
        [*common, "--arch", "transformer", "--criterion", "label_smoothed_cross_entropy"],
        args.device,
        dtype,
    )
    gated = args.arch.startswith("rcg_")
    own = ["--criterion", "gate_regularized_cross_entropy" if gated else "label_smoothed_cross_entropy"]
    own += ["--load-gate-labels"] if gated else []
    arguments = [*common, "--task", "context_translation", "--arch", args.arch, *own]
    return stock, build_system(args.arch, arguments, args.device, dtype)


def compare_systems(stock: System, ours: System, args: argparse.Namespace) -> List[Dict[str, Any]]:
    """The speeds of training and decoding of both systems."""
    ours.task.load_dataset("train")
    train_batches = first_batches(ours.task, args.batches, args.max_tokens, args.device)
    decode_batches = first_batches(ours.task, 1, args.max_tokens // args.beam, args.device)
    counted = [without_padding(decode_batches[0])]
    decode_counts, train_counts = {}, {}
    for system in (stock, ours):
        decode_counts[system.name] = multiply_adds(partial(decode, system, counted, args.beam, args.length))
        train_counts[system.name] = sum(
            3 * multiply_adds(partial(forward, system, without_padding(batch))) for batch in train_batches
        )
    runs: Dict[str, Tuple[Callable[[System], int], Dict[str, int]]] = {
        "training": (lambda system: train_on(system, train_batches), train_counts),
        "decoding": (lambda system: decode(system, decode_batches, args.beam, args.length), decode_counts),
    }
    return [compare_speed(what, stock, ours, run, counts, args.blocks) for what, (run, counts) in runs.items()]


def main() -> None:
    """Build both systems, compare them, print and store the results."""
    logging.disable(logging.INFO)
    parser = get_parser(__doc__, batches=3)
    parser.add_argument("--arch", default="rcg_transformer", help="architecture beside stock (default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="parameters of both models in bfloat16")
    parser.add_argument("--size", default=SIZE, help="fairseq-train options of both models (default: %(default)s)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    stock, ours = build_systems(args)
    results = compare_systems(stock, ours, args)
    report(results, args, f"{args.size}{' in bfloat16' * args.bf16}")


if __name__ == "__main__":
    main()

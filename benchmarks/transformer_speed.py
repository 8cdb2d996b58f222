"""Training and decoding speed of our architectures compared with stock fairseq's ``transformer`` of the same size.

    python -m benchmarks.transformer_speed data-bin/X -s de -t en [--arch rcg_transformer ...] [--json speed.json]

Each model runs in a process of its own, as its command would. The models take turns over the same batches, several
batches at a time (a block), and decode as ``fairseq-generate`` prepares them. So on a CPU, ours keeps the memory that
it frees, and stock does not: the ratio is that of the commands, not only of the models. The result is the median over
pairs of blocks of the ratio of speeds, by the clock and by the time of all processors. Beside it is the ratio that the
number of multiply-adds allows. If the times of one model's own blocks, which do the same work, differ by more than a
tenth, the machine was not quiet: the script says so, does not write that figure, and ends with status 1.

``torch.utils.flop_counter`` counts the multiply-adds of the matrix products of a batch, including padding (but not that
of preceding sentences), the output layer, and both passes of an encoder that reads relations. A training step counts as
three forward passes. torch before 2.3 has no such counter, and a GPU's kernels are not counted: in these cases there is
no ratio that the count allows.
"""

import copy
import math
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, Dict, List, NamedTuple

import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig

import fairseq_ctxgates.models
import fairseq_ctxgates.tasks  # noqa: F401  registers the task and the architectures
from benchmarks.timing import SystemProcess, Work, add_block_options, compare_speed, get_parser, report
from fairseq_ctxgates.analysis.inference import required_streams

CAN_COUNT = find_spec("torch.nn.attention") is not None  # torch 2.3 or later
if CAN_COUNT:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

# The setting of the Multi30k experiments in examples/rcg.
SIZE = (
    "--encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256 --encoder-ffn-embed-dim 512 "
    "--decoder-ffn-embed-dim 512 --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.3 "
    "--share-all-embeddings"
)
STOCK = ["--arch", "transformer", "--criterion", "label_smoothed_cross_entropy"]
Batch = Dict[str, Any]


class System(NamedTuple):
    """A model with its task, criterion and optimizer."""

    name: str
    task: Any
    model: Any
    criterion: Any
    optimizer: torch.optim.Optimizer


def parse(arguments: List[str], args: Namespace) -> DictConfig:
    """fairseq's configuration, from a model's arguments of fairseq-train and from those that all models share."""
    common = [args.data, "-s", args.source_lang, "-t", args.target_lang, "--label-smoothing", "0.1"]
    common += ["--max-tokens", str(args.max_tokens), *args.size.split()]
    parsed = options.parse_args_and_arch(options.get_training_parser(), [*common, *arguments])
    return convert_namespace_to_omegaconf(parsed)


def build_system(name: str, arguments: List[str], args: Namespace) -> System:
    """Build a model, its criterion and Adam."""
    if args.threads:
        torch.set_num_threads(args.threads)
    cfg = parse(arguments, args)
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    model = task.build_model(cfg.model)
    return System(name, task, model, task.build_criterion(cfg.criterion), torch.optim.Adam(model.parameters(), lr=1e-4))


def first_batches(task: Any, args: Namespace) -> List[List[Batch]]:
    """The first shuffled batches of the training split, for training and for decoding, with the side streams that the
    task has loaded."""
    sizes = (args.batches, args.max_tokens), (math.ceil(args.batches / 5), args.max_tokens // args.beam)
    options = {"required_batch_size_multiple": 8, "seed": 1, "disable_iterator_cache": True}  # the two sizes differ
    iterators = (task.get_batch_iterator(task.dataset("train"), max_tokens=tokens, **options) for _, tokens in sizes)
    return [list(islice(iterator.next_epoch_itr(), count)) for iterator, (count, _) in zip(iterators, sizes)]


def net_input(system: System, batch: Batch) -> Batch:
    """The part of a batch's input that the system's model takes."""
    known = {"src_tokens", "src_lengths", "prev_output_tokens"}
    if required_streams(system.model):
        return dict(batch["net_input"])
    return {name: value for name, value in batch["net_input"].items() if name in known}


def without_padding(batch: Batch) -> Batch:
    """The batch with its preceding sentences cut to their mean length; for counting multiply-adds only."""
    preceding = batch["net_input"].get("preceding_tokens")
    if preceding is None:
        return batch
    length = round(preceding.ne(1).sum().item() / len(preceding))  # 1: fairseq's padding symbol
    return {**batch, "net_input": {**batch["net_input"], "preceding_tokens": preceding[:, -length:]}}


def train_on(system: System, batches: List[Batch]) -> int:
    """One optimizer step for each batch; returns the number of target tokens."""
    system.model.train()
    system.criterion.train()
    for batch in ({**batch, "net_input": net_input(system, batch)} for batch in batches):
        system.optimizer.zero_grad()
        loss, sample_size, _ = system.criterion(system.model, batch)
        (loss / sample_size).backward()
        system.optimizer.step()
    return sum(batch["ntokens"] for batch in batches)


def decode(system: System, batches: List[Batch], beam: int, length: int) -> int:
    """Beam search to a fixed length, so that both models take the same steps; returns the number of tokens found."""
    system.model.eval()
    options = GenerationConfig(beam=beam, max_len_b=length, min_len=length)
    generator = system.task.build_generator([system.model], options)
    for batch in batches:
        generator.generate([system.model], {"net_input": net_input(system, batch)})
    return sum(len(batch["id"]) for batch in batches) * length


def multiply_adds(run: Callable[[], Any]) -> int:
    """The multiply-adds of the matrix products in a call; 0 if torch cannot count them."""
    if not CAN_COUNT:
        return 0
    # On a CPU the counter does not see the products of oneDNN and of attention's fused kernels.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        with torch.backends.mkldnn.flags(enabled=False):
            run()
    return counter.get_total_flops() // 2


def forward(system: System, batch: Batch) -> None:
    """One forward pass, every position through the output layer."""
    system.model.eval()
    system.model(**net_input(system, batch))


def work_of(system: System, batches: List[List[Batch]], args: Namespace) -> Dict[str, Work]:
    """The work for which a system is timed, on batches for training and for decoding."""
    searched = copy.deepcopy(system.model)
    searched.make_generation_fast_(need_attn=False)  # as in fairseq-generate; not trainable afterwards
    decode_all = partial(decode, system._replace(model=searched), beam=args.beam, length=args.length)
    for_training, for_decoding = ([without_padding(batch) for batch in some] for some in batches)
    counts = (
        (
            sum(3 * multiply_adds(partial(forward, system, batch)) for batch in for_training),
            multiply_adds(partial(decode_all, for_decoding)),
        )
        if args.device == "cpu"
        else (0, 0)
    )
    for model in (system.model, searched):
        model.to(args.device, torch.bfloat16 if args.bf16 else torch.float32)
    training, decoding = utils.apply_to_sample(lambda x: x.to(args.device), batches)
    return {
        "training": Work(partial(train_on, system, training), counts[0]),
        "decoding": Work(partial(decode_all, decoding), counts[1]),
    }


def arguments_of(arch: str) -> List[str]:
    """Arguments of fairseq-train for an architecture of ours."""
    criterion = "gate_regularized_cross_entropy" if arch.startswith("rcg_") else "label_smoothed_cross_entropy"
    # Data split into subwords have no unknown words, and by default smoothing runs its network only for these.
    options = {"rcg": ["--load-gate-labels"], "car": ["--smoothing-words", "all"]}.get(arch.split("_")[0], [])
    return ["--task", "context_translation", "--arch", arch, "--criterion", criterion, *options]


def build(name: str, arguments: List[str], args: Namespace, batches_path: str) -> Dict[str, Work]:
    """The work of a model, on the batches in a file."""
    return work_of(build_system(name, arguments, args), torch.load(batches_path), args)


def start_pair(arch: str, args: Namespace, path: str, stack: ExitStack) -> List[SystemProcess]:
    """Stock's model and the model of an architecture of ours, each in its process. Both take the same batches, which
    have the side streams of our model, from a file that this function writes."""
    ours = arguments_of(arch)
    system = build_system(arch, ours, args)  # a task loads what its model reads
    system.task.load_dataset("train")
    torch.save(first_batches(system.task, args), path)
    return [
        stack.enter_context(SystemProcess(name, args.device, build, name, arguments, args, path))
        for name, arguments in (("transformer", STOCK), (arch, ours))
    ]


def add_model_options(parser: ArgumentParser) -> None:
    """Add the options that say which models are compared."""
    parser.add_argument(
        "--arch",
        nargs="+",
        default=["rcg_transformer"],
        help="architectures to compare with stock fairseq's (default: rcg_transformer)",
    )
    parser.add_argument("--bf16", action="store_true", help="parameters of both models in bfloat16")
    parser.add_argument("--size", default=SIZE, help="fairseq-train options of both models (default: %(default)s)")


def main() -> None:
    """Build all systems, compare each with stock's, print and store the results."""
    parser = get_parser(__doc__, batches=3)
    add_block_options(parser)
    add_model_options(parser)
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        pairs = [start_pair(arch, args, str(Path(folder, arch)), stack) for arch in args.arch]
        for system in chain(*pairs):
            system.wait()
        results = (
            compare_speed(what, stock, ours, args.blocks, args.patience)
            for stock, ours in pairs
            for what in ("training", "decoding")
        )
        report(results, args, f"{args.size}{' in bfloat16' * args.bf16}")


if __name__ == "__main__":
    main()

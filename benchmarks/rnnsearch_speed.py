"""Training and decoding speed of RNNSearch compared with fairseq's own ``lstm``, and what each mechanism costs.

    python -m benchmarks.rnnsearch_speed data-bin/X -s de -t en [--json speed.json]

``lstm`` has a bidirectional encoder. Like RNNSearch, it has one layer each in encoder and decoder, and the same
embedding and hidden sizes. The method is that of ``transformer_speed.py``. The element-wise work of attention (tanh in
RNNSearch, products in ``lstm``) is not counted as multiply-adds.
"""

from argparse import Namespace
from itertools import chain
from typing import Any, Dict, Iterator, List

from fairseq import tasks

from benchmarks.timing import SystemProcess, Work, add_block_options, compare_speed, get_parser, report
from benchmarks.transformer_speed import build_system, first_batches, parse, work_of

OURS = "--task context_translation "
SYSTEMS = {
    "lstm": "--arch lstm --encoder-bidirectional --decoder-out-embed-dim {output_dim}",
    "rnnsearch": OURS + "--arch rnnsearch",
    "with feedback attention": OURS + "--arch rnnsearch --feedback-attention",
    "with context gate source": OURS + "--arch rnnsearch --context-gate source",
    "with context gate target": OURS + "--arch rnnsearch --context-gate target",
    "with context gate both": OURS + "--arch ctxgate_rnnsearch",
    "with inter-sentence gate": OURS + "--arch isg_rnnsearch",
    "with smoothing fcwm": OURS + "--arch car_rnnsearch --smoothing fcwm --smoothing-side both --smoothing-words all",
    "with smoothing ccwm": OURS + "--arch car_rnnsearch --smoothing ccwm --smoothing-side both --smoothing-words all",
}
PAIRS = (
    ("lstm", "rnnsearch"),
    ("lstm", "with feedback attention"),
    ("rnnsearch", "with feedback attention"),
    ("rnnsearch", "with context gate source"),
    ("rnnsearch", "with context gate target"),
    ("rnnsearch", "with context gate both"),
    ("with feedback attention", "with inter-sentence gate"),
    ("rnnsearch", "with smoothing fcwm"),
    ("rnnsearch", "with smoothing ccwm"),
)


def arguments_of(name: str, args: Namespace) -> List[str]:
    """The system's own options of fairseq-train."""
    return SYSTEMS[name].format(output_dim=args.hidden_size // 2).split()  # as wide as RNNSearch's maxout layer


def build(name: str, args: Namespace) -> Dict[str, Work]:
    """The work of a system. The batches are fairseq's own, with another sentence's source as the preceding sentence."""
    system = build_system(name, arguments_of(name, args), args)
    task = tasks.setup_task(parse(arguments_of("lstm", args), args).task)
    task.load_dataset("train")
    batches = first_batches(task, args)
    for batch in chain(*batches):
        batch["net_input"]["preceding_tokens"] = batch["net_input"]["src_tokens"].roll(1, dims=0)
    return work_of(system, batches, args)


def compare_pair(args: Namespace, first: str, second: str) -> Iterator[Dict[str, Any]]:
    """The speeds of training and decoding of two systems."""
    with SystemProcess(first, args.device, build, first, args) as one:
        with SystemProcess(second, args.device, build, second, args) as other:
            for system in (one, other):
                system.wait()
            for what in ("training", "decoding"):
                yield compare_speed(what, one, other, args.blocks, args.patience)


def main() -> None:
    """Compare every pair, print and store the results."""
    parser = get_parser(__doc__, batches=1)
    add_block_options(parser)
    parser.add_argument("--embed-dim", type=int, default=620, help="for every model (default: the papers' 620)")
    parser.add_argument("--hidden-size", type=int, default=1000, help="for every model (default: the papers' 1000)")
    names = sorted({second for _, second in PAIRS})
    parser.add_argument("--models", nargs="+", choices=names, help="only the comparisons of these (default: all)")
    args = parser.parse_args()
    args.bf16 = False
    args.size = f"--encoder-embed-dim {args.embed_dim} --encoder-hidden-size {args.hidden_size} "
    args.size += f"--decoder-embed-dim {args.embed_dim} --decoder-hidden-size {args.hidden_size} --dropout 0.1 "
    args.size += "--criterion label_smoothed_cross_entropy"
    pairs = [pair for pair in PAIRS if args.models is None or pair[1] in args.models]
    results = (result for first, second in pairs for result in compare_pair(args, first, second))
    size = f"embedding {args.embed_dim}, hidden {args.hidden_size}, {args.max_tokens} tokens a batch, beam {args.beam}"
    report(results, args, size)


if __name__ == "__main__":
    main()

"""Training and decoding speed of RNNSearch beside fairseq's own ``lstm``, and what each mechanism costs.

    python -m benchmarks.rnnsearch_speed data-bin/X -s de -t en [--json speed.json]

``lstm`` has a bidirectional encoder and, like RNNSearch, one layer each in encoder and decoder and the same embedding
and hidden sizes. The method is that of ``transformer_speed.py``. Multiply-adds are counted on the CPU; the
element-wise work of attention (tanh in RNNSearch, products in ``lstm``) is not.
"""

import argparse
import logging
from functools import partial
from typing import Any, Callable, Dict, List

import torch
from fairseq import utils

from benchmarks.transformer_speed import (
    System,
    build_system,
    compare_speed,
    decode,
    first_batches,
    forward,
    get_parser,
    multiply_adds,
    report,
    train_on,
)

SYSTEMS = {
    "lstm": "--arch lstm --encoder-bidirectional --decoder-out-embed-dim {output_dim}",
    "rnnsearch": "--arch rnnsearch",
    "with feedback attention": "--arch rnnsearch --feedback-attention",
    "with context gate source": "--arch rnnsearch --context-gate source",
    "with context gate target": "--arch rnnsearch --context-gate target",
    "with context gate both": "--arch ctxgate_rnnsearch",
    "with inter-sentence gate": "--task context_translation --arch isg_rnnsearch",
    "with smoothing fcwm": "--arch car_rnnsearch --smoothing fcwm --smoothing-side both --smoothing-words all",
    "with smoothing ccwm": "--arch car_rnnsearch --smoothing ccwm --smoothing-side both --smoothing-words all",
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


def add_preceding(batches: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The batches with another sentence's source as the preceding sentence, for the models that read one."""
    for batch in batches:
        batch["net_input"]["preceding_tokens"] = batch["net_input"]["src_tokens"].roll(1, dims=0)
    return batches


def compare_pair(args: argparse.Namespace, names: List[str]) -> List[Dict[str, Any]]:
    """The speeds of training and decoding of two systems."""
    size = f"--encoder-embed-dim {args.embed_dim} --encoder-hidden-size {args.hidden_size} "
    size += f"--decoder-embed-dim {args.embed_dim} --decoder-hidden-size {args.hidden_size} --dropout 0.1"
    common = [args.data, "-s", args.source_lang, "-t", args.target_lang, *size.split()]
    common += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    common += ["--max-tokens", str(args.max_tokens)]

    def arguments_of(name: str) -> str:
        return SYSTEMS[name].format(output_dim=args.hidden_size // 2)  # as RNNSearch's maxout layer

    first, second = (build_system(name, [*common, *arguments_of(name).split()], "cpu") for name in names)
    first.task.load_dataset("train")
    training = add_preceding(first_batches(first.task, args.batches, args.max_tokens, "cpu"))
    decoding = add_preceding(first_batches(first.task, 1, args.max_tokens // args.beam, "cpu"))
    counts: Dict[str, Dict[str, int]] = {"training": {}, "decoding": {}}
    for system in (first, second):
        counts["training"][system.name] = sum(3 * multiply_adds(partial(forward, system, batch)) for batch in training)
        counts["decoding"][system.name] = multiply_adds(partial(decode, system, decoding, args.beam, args.length))
        system.model.to(args.device)
    training, decoding = utils.apply_to_sample(lambda x: x.to(args.device), [training, decoding])
    runs: Dict[str, Callable[[System], int]] = {
        "training": lambda system: train_on(system, training),
        "decoding": lambda system: decode(system, decoding, args.beam, args.length),
    }
    return [compare_speed(what, first, second, run, counts[what], args.blocks) for what, run in runs.items()]


def main() -> None:
    """Compare every pair, print and store the results."""
    logging.disable(logging.INFO)
    parser = get_parser(__doc__, batches=1)
    parser.add_argument("--embed-dim", type=int, default=620, help="of every model (default: the papers' 620)")
    parser.add_argument("--hidden-size", type=int, default=1000, help="of every model (default: the papers' 1000)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    results = [result for names in PAIRS for result in compare_pair(args, list(names))]
    size = f"embedding {args.embed_dim}, hidden {args.hidden_size}, {args.max_tokens} tokens a batch, beam {args.beam}"
    report(results, args, size)


if __name__ == "__main__":
    main()

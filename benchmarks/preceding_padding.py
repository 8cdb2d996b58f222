"""How much padding there is in batches with preceding sentences, in our order of sentences and in fairseq's.

python benchmarks/preceding_padding.py data-bin/X -s en -t de [--gen-subset train] [--max-tokens 4096]
"""

import argparse
import logging
from typing import Any, List

import numpy as np
from fairseq import options, tasks
from fairseq.data import data_utils

import fairseq_ctxgates.tasks  # noqa: F401  registers the task

INPUTS = {"source": "src_tokens", "preceding": "preceding_tokens", "target": "prev_output_tokens"}


def measure(task: Any, split: str, max_tokens: int) -> List[str]:
    """The number of batches, and for each input the ratio of all positions to those that are not padding."""
    padded, real, number = dict.fromkeys(INPUTS, 0), dict.fromkeys(INPUTS, 0), 0
    epoch = task.get_batch_iterator(task.dataset(split), max_tokens=max_tokens, required_batch_size_multiple=8)
    for batch in epoch.next_epoch_itr():
        number += 1
        for name, key in INPUTS.items():
            padded[name] += batch["net_input"][key].numel()
            real[name] += int(batch["net_input"][key].ne(task.source_dictionary.pad()).sum())
    return [str(number), *(f"{padded[name] / real[name]:.3f}" for name in INPUTS)]


def main() -> None:
    """Print a Markdown table."""
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="binarized data directory")
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--gen-subset", default="train", metavar="SPLIT")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[2048, 4096])
    args = parser.parse_args()
    arguments = [args.data, "-s", args.source_lang, "-t", args.target_lang, "--task", "context_translation"]
    task_args = options.parse_args_and_arch(
        options.get_training_parser(), [*arguments, "--arch", "isg_transformer", "--load-preceding-sentences"]
    )
    print("| order | --max-tokens | batches | " + " | ".join(INPUTS) + " |\n" + "|" + " --- |" * 6)
    for order in ("fairseq's", "ours"):
        task = tasks.setup_task(task_args)
        task.load_dataset(args.gen_subset)
        dataset = task.dataset(args.gen_subset)
        if order == "fairseq's":
            dataset.batch_by_size = lambda indices, max_tokens, of=dataset, **options: data_utils.batch_by_size(
                indices, of.num_tokens, np.array([of.num_tokens(index) for index in indices]), max_tokens, **options
            )
        for max_tokens in args.max_tokens:
            print(f"| {order} | {max_tokens} | " + " | ".join(measure(task, args.gen_subset, max_tokens)) + " |")


if __name__ == "__main__":
    main()

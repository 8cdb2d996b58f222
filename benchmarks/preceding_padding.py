"""How much padding there is in batches with preceding sentences, in our order of sentences and in fairseq's.

python -m benchmarks.preceding_padding data-bin/X -s en -t de [--gen-subset train] [--max-tokens 4096] [--number 3]

*preceding* is what the decoder's attention reads. *encoded* is what the encoder reads of it, in groups of similar
length.
"""

import argparse
import logging
from typing import Any, List

import numpy as np
from fairseq import options, tasks
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_ctxgates.models
import fairseq_ctxgates.tasks  # noqa: F401  registers the task and the architectures

INPUTS = {"source": "src_tokens", "preceding": "preceding_tokens", "target": "prev_output_tokens"}


def measure(task: Any, split: str, max_tokens: int) -> List[str]:
    """The number of batches, and the ratio of all positions to those that are not padding, for each input and for what
    is encoded of the preceding sentences."""
    padded, real, batches, encoded = dict.fromkeys(INPUTS, 0), dict.fromkeys(INPUTS, 0), 0, 0
    epoch = task.get_batch_iterator(task.dataset(split), max_tokens=max_tokens, required_batch_size_multiple=8)
    for batch in epoch.next_epoch_itr():
        batches += 1
        for name, key in INPUTS.items():
            padded[name] += batch["net_input"][key].numel()
            real[name] += int(batch["net_input"][key].ne(task.source_dictionary.pad()).sum())
        groups = batch["net_input"].get("preceding_groups", [batch["net_input"]["preceding_tokens"]])
        encoded += sum(group.numel() for group in groups)
    ratios = [padded[name] / real[name] for name in INPUTS]
    return [str(batches), *(f"{ratio:.3f}" for ratio in (*ratios, encoded / real["preceding"]))]


def main() -> None:
    """Print a Markdown table."""
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="binarized data directory")
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--gen-subset", default="train", metavar="SPLIT")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--number", type=int, default=1, help="how many preceding sentences the model reads")
    args = parser.parse_args()
    arguments = [args.data, "-s", args.source_lang, "-t", args.target_lang, "--task", "context_translation"]
    arguments += ["--arch", "isg_transformer_tiny", "--load-preceding-sentences"]
    arguments += ["--inter-sentence-context", str(args.number)]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    print("| order | --max-tokens | batches | " + " | ".join([*INPUTS, "encoded"]) + " |\n" + "|" + " --- |" * 7)
    for order in ("fairseq's", "ours"):
        task = tasks.setup_task(cfg.task)
        task.build_model(cfg.model)  # the task then knows how many preceding sentences the model reads
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

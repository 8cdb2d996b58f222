"""Score a model on the quick start's probes, by forced decoding.

``python probe.py data-bin --path checkpoint.pt --probes test1=corpus/probe-preceding.probed.tsv ...``

The decoder's input is the reference. A probed word is right if the model ranks it first in the whole vocabulary, given
the source and the preceding words of the reference. A word of several subwords is right if each subword is. So only
the probed word is scored, and earlier errors of a translation do not count.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import torch

from fairseq_ctxgates.analysis.analysis import quiet_logging
from fairseq_ctxgates.analysis.forced_decoding import predicted_words
from fairseq_ctxgates.analysis.inference import Inference, add_batch_options, add_model_options
from fairseq_ctxgates.data.subwords import group_subwords
from fairseq_ctxgates.errors import UserError, exit_on_user_error


def read_probed(path: Path) -> Dict[int, List[Tuple[int, str]]]:
    """The position and the word of each probed word, by the number of its line; both numbers count from 1."""
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    except FileNotFoundError as error:
        raise UserError(f"{path} not found: make_corpus.py writes it") from error
    probed = defaultdict(list)
    for row in rows:
        probed[int(row["line"])].append((int(row["position"]), row["word"]))
    return probed


def join_words(tokens: Sequence[str], ranked_first: Sequence[str]) -> List[Tuple[str, bool]]:
    """The words of a target sentence, each with a flag that is true if the model ranks all its subwords first."""
    is_first = [token == first for token, first in zip(tokens, ranked_first)]
    return [
        ("".join(text for text, _ in word), all(is_first[position] for _, position in word))
        for word in group_subwords(tokens, "subword_nmt")
    ]


def score_probe(
    inference: Inference, split: str, path: Path, max_tokens: Optional[int] = None, batch_size: Optional[int] = None
) -> Tuple[int, int]:
    """The number of a split's probed words that are ranked first, and the number of all its probed words.

    Raises:
        UserError: a probed word is not at the position that the probe's file gives.
    """
    probed, right = read_probed(path), 0
    dictionary = inference.task.target_dictionary
    for batch in inference.batches(split, max_tokens, batch_size):
        with torch.no_grad():
            predictions = predicted_words(inference.model, batch, dictionary.pad())
        for index, target, ranked_first in zip(batch["id"].tolist(), batch["target"], predictions):
            line = index + 1
            if line not in probed:
                continue
            tokens = target[target != dictionary.pad()]
            words = join_words([dictionary[i] for i in tokens], [dictionary[i] for i in ranked_first])
            for position, word in probed[line]:
                if position > len(words) or words[position - 1][0] != word:
                    raise UserError(f"{path}: word {position} of line {line} of {split} is not {word!r}: other data?")
                right += words[position - 1][1]
    return right, sum(map(len, probed.values()))


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Score a model on the quick start's probes, by forced decoding.")
    add_model_options(parser)
    parser.add_argument(
        "--probes",
        required=True,
        action="extend",
        nargs="+",
        metavar="SPLIT=TSV",
        help="binarized splits and their .probed.tsv files",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the accuracies to this file")
    add_batch_options(parser)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print a line for each probe."""
    args = get_parser().parse_args(argv)
    quiet_logging()
    inference = Inference.from_options(args)
    accuracies = {}
    for probe in args.probes:
        split, _, path = probe.partition("=")
        right, count = score_probe(inference, split, Path(path), args.max_tokens, args.batch_size)
        accuracies[split] = right / count
        print(f"{path}: {right} of {count} probed words ranked first, accuracy {right / count:.3f}")
    if args.json:
        args.json.write_text(json.dumps(accuracies, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with exit_on_user_error():
        main()

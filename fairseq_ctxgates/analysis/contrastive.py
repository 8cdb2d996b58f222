"""How often a model scores the right translation above wrong ones, each after its preceding sentence (Bawden et al.
2018; ContraPro: Müller et al. 2018).

    ctxgates analyze contrastive data-bin/X --path plain.pt isg.pt --test-set anaphora.json --bpe subword_nmt ...
    ctxgates analyze contrastive data-bin/X --path isg.pt --test-set contrapro.json --documents documents
    ctxgates analyze contrastive data-bin/X --path isg.pt --source test.en --preceding test.before.en \\
        --reference test.de --contrastive wrong.de

A translation's score is its log-probability, the sum over its tokens, end of sentence included; with ``--normalize``
the mean, which is the score of fairseq's ``SequenceScorer``. A model is right where the right translation scores higher
than every wrong one. A model that reads no preceding sentence scores without it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq import utils
from fairseq.data import data_utils, encoders
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES
from omegaconf import MISSING
from torch import Tensor

from fairseq_ctxgates.analysis.bootstrap import Estimate, add_bootstrap_options, bootstrap
from fairseq_ctxgates.analysis.contrastive_sets import Example, read_parallel, read_test_set
from fairseq_ctxgates.analysis.figures import bars, legend_above, new_figure
from fairseq_ctxgates.analysis.inference import (
    Inference,
    add_batch_options,
    add_model_options,
    checkpoint_paths,
    quiet_logging,
)
from fairseq_ctxgates.analysis.report import Table, add_report_options, check_outputs, write_report
from fairseq_ctxgates.analysis.scores import token_log_probs
from fairseq_ctxgates.analysis.systems import system_names
from fairseq_ctxgates.errors import UserError

ALL = "all"
ENCODERS = {"tokenizer": encoders.build_tokenizer, "bpe": encoders.build_bpe}

# --- text to tokens


def text_encoder(args: argparse.Namespace, language: str) -> Callable[[str], str]:
    """What makes tokens of raw text, as fairseq-interactive does with ``--tokenizer`` and ``--bpe``; nothing without.

    Raises:
        UserError: they cannot be set up.
    """
    options = argparse.Namespace(**{**vars(args), "source_lang": language})
    parts = []
    for name, build in ENCODERS.items():
        try:
            parts.append(build(options))
        except (AssertionError, ImportError, OSError, ValueError) as error:
            raise UserError(f"--{name} {getattr(args, name)}: {error}") from error

    def encode(text: str) -> str:
        for part in filter(None, parts):
            text = part.encode(text)
        return text

    return encode


# --- scores


class Candidates:
    """Every translation of every example, as a model reads it.

    fairseq's task makes a data set of lines, as for fairseq-interactive: each translation's source stands in a document
    of its own, after the preceding sentence.

    Args:
        inference: the model and its task
        examples: of the test set
        args: options of :func:`text_encoder`

    Raises:
        UserError: a sentence is longer than the model's positions.
    """

    def __init__(self, inference: Inference, examples: Sequence[Example], args: argparse.Namespace) -> None:
        task = inference.task
        source, target = (text_encoder(args, lang) for lang in (task.cfg.source_lang, task.cfg.target_lang))
        self.lines: List[Tensor] = []
        self.rows: List[int] = []  # the line of each candidate's source
        self.targets: Dict[int, Tensor] = {}  # by that line
        end = torch.tensor([task.source_dictionary.eos()])
        for example in examples:
            document = [
                _tokens(task.source_dictionary, source(line)) for line in (example.preceding, example.source) if line
            ]
            for translation in example.translations:
                self.lines += [*document, end]
                self.rows.append(len(self.lines) - 2)
                self.targets[self.rows[-1]] = _tokens(task.target_dictionary, target(translation))
        self.dataset = task.build_dataset_for_inference(self.lines, [len(line) for line in self.lines])
        self.padding, self.eos = task.target_dictionary.pad(), task.target_dictionary.eos()
        self.source_lengths = np.asarray(self.dataset.sizes)[self.rows]
        self.target_lengths = np.array([len(self.targets[row]) for row in self.rows])
        limits = utils.resolve_max_positions(task.max_positions(), inference.model.max_positions())
        owners = [example for example in examples for _ in example.translations]
        for lengths, limit, side in zip((self.source_lengths, self.target_lengths), limits, ("source", "translation")):
            if (lengths > limit).any():
                first = int(np.argmax(lengths > limit))
                raise UserError(
                    f"{owners[first].where}: a {side} of {lengths[first]} tokens, and {inference.path} reads {limit}"
                )

    def batches(self, max_tokens: Optional[int], batch_size: Optional[int]) -> Any:
        """Batches with targets; ``batch["id"]`` are the lines of their sources."""
        order = np.lexsort((self.target_lengths, self.source_lengths))
        rows = np.array(self.rows)[order]
        tokens = np.maximum(self.dataset.num_tokens_vec(rows), self.target_lengths[order])
        for batch_rows in data_utils.batch_by_size(
            rows,
            num_tokens_fn=None,
            num_tokens_vec=np.minimum(tokens, max_tokens or tokens.max()).astype(np.int64),
            max_tokens=max_tokens,
            max_sentences=batch_size or (None if max_tokens else 64),
        ):
            batch = self.dataset.collater([self.dataset[row] for row in batch_rows])
            targets = [self.targets[row] for row in batch["id"].tolist()]
            batch["target"] = data_utils.collate_tokens(targets, self.padding)
            batch["net_input"]["prev_output_tokens"] = data_utils.collate_tokens(
                targets, self.padding, self.eos, move_eos_to_beginning=True
            )
            yield batch


def _tokens(dictionary: Any, text: str) -> Tensor:
    ids: Tensor = dictionary.encode_line(text, add_if_not_exist=False)
    return ids.long()


def score_examples(inference: Inference, examples: Sequence[Example], args: argparse.Namespace) -> List[np.ndarray]:
    """The score of each translation of each example, (its translations,)."""
    candidates = Candidates(inference, examples, args)
    scores: Dict[int, float] = {}
    for batch in candidates.batches(args.max_tokens, args.batch_size):
        batch = inference.to_device(batch)
        for row, log_probs in zip(batch["id"].tolist(), token_log_probs(inference, batch)):
            scores[row] = float(log_probs.mean() if args.normalize else log_probs.sum())
    in_order = np.array([scores[row] for row in candidates.rows])
    return np.split(in_order, np.cumsum([len(example.translations) for example in examples])[:-1])


# --- accuracy


def is_right(scores: np.ndarray) -> bool:
    """Whether the first of the scores, (translations,), the right translation's, is higher than every other one."""
    return bool((scores[0] > scores[1:]).all())


@dataclass(frozen=True)
class GroupAccuracy:
    """A group of examples: its name, how many there are, the accuracy of guessing, and that of each system."""

    name: str
    examples: int
    chance: float
    accuracies: Sequence[Estimate]


def accuracies(
    examples: Sequence[Example], right: Sequence[Sequence[bool]], resamples: int = 1000, seed: int = 1
) -> List[GroupAccuracy]:
    """The accuracies over all examples, and over those of each group.

    Args:
        right: for each system, whether it is right on each example
        resamples, seed: of the intervals, over examples; paired across the systems
    """
    members: Dict[Tuple[str, str], List[int]] = {(ALL, ""): list(range(len(examples)))}
    for number, example in enumerate(examples):
        for group in example.groups.items():
            members.setdefault(group, []).append(number)
    names = list(dict.fromkeys(name for name, _ in members))
    found = []
    for (name, value), numbers in sorted(members.items(), key=lambda item: (names.index(item[0][0]), item[0][1])):
        chance = float(np.mean([1 / len(examples[number].translations) for number in numbers]))
        of_systems = [np.array([[system[number], 1.0] for number in numbers]) for system in right]
        found.append(
            GroupAccuracy(
                f"{name} {value}".strip(),
                len(numbers),
                chance,
                [
                    bootstrap(sums, lambda totals: totals[..., 0] / totals[..., 1], resamples, seed)
                    for sums in of_systems
                ],
            )
        )
    return found


def accuracy_figure(groups: Sequence[GroupAccuracy], names: Sequence[str]) -> Any:
    """A matplotlib figure: the accuracy of each system in each group, with its interval, and that of guessing."""
    figure = new_figure(min(max(6.0, (0.22 * len(names) + 0.25) * len(groups) + 1.5), 20.0), 4.6)
    axes = figure.add_subplot()
    bars(
        axes,
        [f"{group.name} ({group.examples:,})" for group in groups],
        {name: [group.accuracies[number].value for group in groups] for number, name in enumerate(names)},
        {
            name: [(group.accuracies[number].low, group.accuracies[number].high) for group in groups]
            for number, name in enumerate(names)
        },
    )
    for position, group in enumerate(groups):
        label = "guessing" if position == 0 else None
        axes.hlines(group.chance, position - 0.45, position + 0.45, "black", linestyles="--", label=label)
    if len(groups) > 3:
        for text in axes.get_xticklabels():
            text.set(rotation=45, ha="right", rotation_mode="anchor")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("examples (number)")
    axes.set_ylabel("accuracy")
    legend_above(axes)
    return figure


def summary_table(groups: Sequence[GroupAccuracy], names: Sequence[str]) -> Table:
    """A row for each group."""
    columns = {"examples": "", "number": ",d", "guessing": ".3f", **{name: "" for name in names}}
    rows = [
        [group.name, group.examples, group.chance, *(accuracy.text(".3f") for accuracy in group.accuracies)]
        for group in groups
    ]
    return Table(columns, rows)


def example_table(examples: Sequence[Example], names: Sequence[str], scores: Sequence[Sequence[np.ndarray]]) -> Table:
    """A row for each example, with what each system gives to the right translation and to the best wrong one."""
    group_names = list(dict.fromkeys(name for example in examples for name in example.groups))
    columns = {"example": "", **{name: "" for name in group_names}}
    for name in names:
        columns.update({f"{name}: right translation": ".4f", f"{name}: best wrong one": ".4f"})
    rows = []
    for number, example in enumerate(examples):
        row: List[Any] = [example.where, *(example.groups.get(name) for name in group_names)]
        for of_system in scores:
            row += [float(of_system[number][0]), float(of_system[number][1:].max())]
        rows.append(row)
    return Table(columns, rows)


# --- command


def get_parser() -> argparse.ArgumentParser:
    """The command's options, without those of the tokenizer and the sub-words that are chosen."""
    parser = argparse.ArgumentParser(
        prog="ctxgates analyze contrastive",
        description="Accuracy of scoring the right translation above wrong ones, each after its preceding sentence.",
    )
    add_model_options(parser, several=True)
    parser.add_argument("--names", nargs="+", metavar="NAME", help="the models' names (default: from --path)")
    _add_test_set_options(parser)
    for option, what in (("--tokenizer", "tokenize the text"), ("--bpe", "split its words")):
        names = sorted(REGISTRIES[option[2:]]["registry"])
        parser.add_argument(
            option,
            choices=names,
            metavar="NAME",
            help=f"{what}, as fairseq-interactive does, with the options that it takes (--bpe-codes ...): "
            f"{', '.join(names)} (default: the text is in tokens)",
        )
    parser.add_argument(
        "--normalize", action="store_true", help="score by the mean over a translation's tokens, not by the sum"
    )
    add_batch_options(parser)
    add_bootstrap_options(parser)
    add_report_options(parser, csv="the scores of each example", figure="the accuracies")
    return parser


def _add_test_set_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--test-set",
        type=Path,
        metavar="JSON",
        help="contrapro.json (Müller et al. 2018), anaphora.json or lexical-choice.json (Bawden et al. 2018)",
    )
    parser.add_argument("--source", type=Path, metavar="FILE", help="instead of --test-set: the source, plain text")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="with --source: the right translations")
    parser.add_argument(
        "--contrastive", type=Path, nargs="+", metavar="FILE", help="with --source: the wrong translations of each line"
    )
    parser.add_argument(
        "--preceding",
        type=Path,
        metavar="FILE",
        help="the preceding source sentence of each line (with --source) or example (of ContraPro), empty for none",
    )
    parser.add_argument(
        "--documents", type=Path, metavar="DIR", help="of ContraPro: the subtitles that its setup_opensubs.sh extracts"
    )


def parse_args(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The options, with those that the chosen tokenizer and sub-words take.

    Raises:
        UserError: one that they cannot do without is missing.
    """
    parser = get_parser()
    chosen, _ = parser.parse_known_args(argv)
    taken = {name: REGISTRIES[name]["dataclass_registry"].get(getattr(chosen, name)) for name in ENCODERS}
    for config in filter(None, taken.values()):
        gen_parser_from_dataclass(parser, config())
    args = parser.parse_args(argv)
    for name, config in taken.items():
        for option in fields(config) if config else ():
            if getattr(args, option.name, option.default) == MISSING:
                raise UserError(f"--{name} {getattr(args, name)} needs --{option.name.replace('_', '-')}")
    return args


def read_examples(args: argparse.Namespace, langs: Sequence[str]) -> List[Example]:
    """The examples that the options name.

    Raises:
        UserError: the options contradict each other, or a file does not fit.
    """
    plain = {"--source": args.source, "--reference": args.reference, "--contrastive": args.contrastive}
    if args.test_set:
        given = [option for option, value in plain.items() if value]
        if given:
            raise UserError(f"{given[0]} is for plain text: leave it out, or --test-set")
        return read_test_set(args.test_set, args.preceding, args.documents, langs)
    missing = [option for option, value in plain.items() if not value]
    if missing:
        raise UserError(f"give --test-set, or plain text: {', '.join(plain)} ({missing[0]} is missing)")
    if args.documents:
        raise UserError("--documents is for contrapro.json: give --preceding")
    return read_parallel(args.source, args.preceding, args.reference, args.contrastive)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print the table; write the files and the figure that are asked for."""
    args = parse_args(argv)
    check_outputs(args)
    quiet_logging()
    paths = checkpoint_paths(args)
    names = system_names(paths, args.names)
    examples: List[Example] = []
    scores = []
    for path in paths:
        inference = Inference.from_options(args, path=path)
        if not examples:
            examples = read_examples(args, [inference.task.cfg.source_lang, inference.task.cfg.target_lang])
        scores.append(score_examples(inference, examples, args))
    right = [[is_right(of_example) for of_example in of_system] for of_system in scores]
    groups = accuracies(examples, right, args.resamples, args.seed)
    kind = "mean" if args.normalize else "sum"
    print(f"accuracy on {args.test_set or args.source}; score: {kind} of the tokens' log-probabilities")
    print(summary_table(groups, names).text())
    report = {
        "test_set": str(args.test_set or args.source),
        "score": kind,
        "paths": dict(zip(names, paths)),
        "groups": [
            {
                "examples": group.name,
                "number": group.examples,
                "chance": group.chance,
                "systems": {name: found.as_dict("accuracy") for name, found in zip(names, group.accuracies)},
            }
            for group in groups
        ],
    }
    figure = accuracy_figure(groups, names) if args.figure else None
    write_report(args, report, example_table(examples, names, scores), figure)

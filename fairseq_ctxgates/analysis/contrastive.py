"""How often a model scores the right translation above wrong ones, each after the preceding sentences (Bawden et al.
2018; ContraPro: Müller et al. 2018).

    ctxgates analyze contrastive data-bin/X --path plain.pt isg.pt --test-set anaphora.json --bpe subword_nmt ...
    ctxgates analyze contrastive data-bin/X --path isg.pt --test-set contrapro.json --documents documents
    ctxgates analyze contrastive data-bin/X --path isg.pt --source test.en --preceding test.before.en \\
        --reference test.de --contrastive wrong.de

A translation's score is its log-probability: the sum over its tokens, end of sentence included. With ``--normalize`` it
is the mean, which is the score of fairseq's ``SequenceScorer``. A model is right about an example if the right
translation scores higher than every wrong one. Translations that differ only in words unknown to the model are the same
to it, and such an example counts as wrong; the report says how many there are, and how many of the tokens are unknown.
A model reads as many of the preceding sentences as it was trained with, or none. A model that also reads the preceding
translations (``--concatenate-preceding-target``) is given those of the test set.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np
from omegaconf import MISSING

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import RESAMPLES, Estimate, add_bootstrap_options, bootstrap_mean
from fairseq_ctxgates.analysis.contrastive_scores import ENCODERS, ModelScores, score_examples
from fairseq_ctxgates.analysis.contrastive_sets import Example, read_parallel, read_test_set
from fairseq_ctxgates.analysis.figures import bars_with_intervals, legend_above, new_figure, tilt_labels
from fairseq_ctxgates.analysis.inference import (
    Inference,
    add_batch_options,
    add_model_options,
    check_overrides,
    checkpoint_paths,
)
from fairseq_ctxgates.analysis.options import add_file_option, add_names_option
from fairseq_ctxgates.analysis.report import Cell, Result, Table, add_report_options
from fairseq_ctxgates.analysis.systems import check_columns, system_names
from fairseq_ctxgates.command_line import CommandParser
from fairseq_ctxgates.compat import REGISTRIES, gen_parser_from_dataclass
from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"
OPTIONS_WITH_FILES = ("--contrastive", "--preceding", "--preceding-target")  # options with one or more files
EXAMPLE_COLUMNS = {"examples": "", "number": ",d", "guessing": ".3f"}  # of each group, besides the systems' columns

# --- accuracy


def is_right(scores: np.ndarray) -> bool:
    """Whether the right translation, the first of the scores (translations,), scores higher than every wrong one."""
    return bool((scores[0] > scores[1:]).all())


@dataclass(frozen=True)
class GroupAccuracy:
    """The accuracies over a group of examples.

    Attributes:
        name: the name of the group
        examples: the number of examples
        chance: the expected accuracy of guessing
        accuracies: the accuracy of each system
    """

    name: str
    examples: int
    chance: float
    accuracies: Sequence[Estimate]

    def as_dict(self, names: Sequence[str]) -> Dict[str, object]:
        """The group and each system's accuracy, for JSON."""
        return {
            "examples": self.name,
            "number": self.examples,
            "chance": self.chance,
            "systems": {name: accuracy.as_dict("accuracy") for name, accuracy in zip(names, self.accuracies)},
        }


def accuracies(
    examples: Sequence[Example], right: Sequence[Sequence[bool]], resamples: int = RESAMPLES, seed: int = 1
) -> List[GroupAccuracy]:
    """The accuracies over all examples, and over the examples of each group.

    Args:
        right: for each system, whether it is right about each example
        resamples, seed: of the intervals, over examples; paired across the systems
    """
    members: Dict[Tuple[str, str], List[int]] = {(ALL, ""): list(range(len(examples)))}
    for index, example in enumerate(examples):
        for group in example.groups.items():
            members.setdefault(group, []).append(index)
    names = list(dict.fromkeys(name for name, _ in members))
    return [
        GroupAccuracy(
            name=f"{name} {value}".strip(),
            examples=len(chosen),
            chance=float(np.mean([1 / len(examples[index].translations) for index in chosen])),
            accuracies=[
                bootstrap_mean(np.array([system[index] for index in chosen], float), resamples, seed)
                for system in right
            ],
        )
        for (name, value), chosen in sorted(members.items(), key=lambda item: (names.index(item[0][0]), item[0][1]))
    ]


def accuracy_figure(groups: Sequence[GroupAccuracy], names: Sequence[str]) -> Figure:
    """The accuracy of each system in each group, with its interval, and the accuracy of guessing."""
    figure = new_figure(min(max(6.0, (0.22 * len(names) + 0.25) * len(groups) + 1.5), 20.0), 4.6)
    axes = figure.add_subplot()
    series = {name: [group.accuracies[index] for group in groups] for index, name in enumerate(names)}
    bars_with_intervals(axes, [f"{group.name} ({group.examples:,})" for group in groups], series)
    for position, group in enumerate(groups):
        label = "guessing" if position == 0 else ""
        axes.hlines(group.chance, position - 0.45, position + 0.45, "black", linestyles="--", label=label)
    if len(groups) > 3:
        tilt_labels(axes)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("examples (number)")
    axes.set_ylabel("accuracy")
    legend_above(axes)
    return figure


def summary_table(groups: Sequence[GroupAccuracy], names: Sequence[str]) -> Table:
    """A row for each group."""
    columns = {**EXAMPLE_COLUMNS, **{name: "" for name in names}}
    rows: List[List[Cell]] = [
        [group.name, group.examples, group.chance, *(accuracy.text(".3f") for accuracy in group.accuracies)]
        for group in groups
    ]
    return Table(columns, rows)


def example_table(examples: Sequence[Example], names: Sequence[str], scores: Sequence[Sequence[np.ndarray]]) -> Table:
    """A row for each example, with each system's scores of the right translation and of the best wrong one."""
    group_names = list(dict.fromkeys(name for example in examples for name in example.groups))
    columns = {"example": "", **{name: "" for name in group_names}}
    for name in names:
        columns.update({f"{name}: right translation": ".4f", f"{name}: best wrong one": ".4f"})
    rows: List[List[Cell]] = []
    for index, example in enumerate(examples):
        row: List[Cell] = [example.where, *(example.groups.get(name) for name in group_names)]
        for system_scores in scores:
            row += [float(system_scores[index][0]), float(system_scores[index][1:].max())]
        rows.append(row)
    return Table(columns, rows)


# --- command


def read_examples(args: argparse.Namespace, inference: Inference) -> List[Example]:
    """The examples that the options name, with as many preceding sentences as the model reads where the test set has
    whole documents.

    Raises:
        UserError: the options contradict each other, or a file does not fit.
    """
    preceding, preceding_target = args.preceding or (), args.preceding_target or ()
    if preceding_target and len(preceding_target) != len(preceding):
        raise UserError(
            f"--preceding-target has {len(preceding_target)} files, --preceding has {len(preceding)}: give the "
            f"translations of each"
        )
    if args.test_set:
        return read_test_set(
            args.test_set, inference.languages, preceding, preceding_target, args.documents, inference.context_size
        )
    plain = {"--source": args.source, "--reference": args.reference, "--contrastive": args.contrastive}
    missing = [option for option, value in plain.items() if not value]
    if missing:
        raise UserError(f"give --test-set, or plain text: {', '.join(plain)} ({missing[0]} is missing)")
    return read_parallel(args.source, args.reference, args.contrastive, preceding, preceding_target)


def score_test_set(args: argparse.Namespace, path: str) -> ModelScores:
    """Read the examples as a model reads them, and score their translations."""
    inference = Inference.from_options(args, path=path)
    return score_examples(inference, read_examples(args, inference), args)


def unknown_notes(names: Sequence[str], systems: Sequence[ModelScores]) -> List[str]:
    """A line for each model to which some of the text is unknown, as fairseq-preprocess prints it."""
    return [
        f"{name}: {system.unknown['source']:.2%} of the source tokens and {system.unknown['target']:.2%} of the target "
        f"tokens are unknown (see --tokenizer and --bpe)"
        for name, system in zip(names, systems)
        if any(system.unknown.values())
    ]


def ambiguity_notes(names: Sequence[str], systems: Sequence[ModelScores]) -> List[str]:
    """A line for each model to which the translations of some example are the same."""
    return [
        f"{name}: in {system.ambiguous:,} of {len(system.examples):,} examples, which count as wrong, a wrong "
        f"translation has the tokens of the right one: it is the same text, or differs in unknown words only"
        for name, system in zip(names, systems)
        if system.ambiguous
    ]


class ContrastiveAnalysis(Analysis):
    """Accuracy of scoring the right translation above wrong ones, each after the preceding sentences."""

    name = "contrastive"

    def add_options(self, parser: CommandParser) -> None:
        """The models, the test set, how to turn its text into tokens, and the files to write."""
        add_model_options(parser, several=True)
        add_names_option(parser, "models", "--path")
        _add_test_set_options(parser)
        for option, what in (("--tokenizer", "tokenize the text"), ("--bpe", "split its words")):
            names = sorted(REGISTRIES[option[2:]]["registry"])
            parser.add_argument(
                option,
                choices=names,
                metavar="NAME",
                help=f"{what} as fairseq-interactive does, with the same further options (--bpe-codes ...): "
                f"{', '.join(names)} (default: leave the text as it is)",
            )
        parser.add_argument(
            "--normalize", action="store_true", help="score by the mean over a translation's tokens, not by the sum"
        )
        add_batch_options(parser)
        add_bootstrap_options(parser, "examples")
        add_report_options(parser, csv="the scores of each example", figure="the accuracies")

    def parse_args(self, argv: Optional[Sequence[str]]) -> argparse.Namespace:
        """The options, with those of the chosen tokenizer and subwords.

        Raises:
            UserError: an option is missing that the tokenizer or the subwords need.
        """
        parser = self.get_parser()
        chosen, _ = parser.parse_known_args(argv)
        configs = {name: REGISTRIES[name]["dataclass_registry"].get(getattr(chosen, name)) for name in ENCODERS}
        for config in filter(None, configs.values()):
            gen_parser_from_dataclass(parser, config())
        args = parser.parse_args(argv)
        for name, config in configs.items():
            for option in fields(config) if config else ():
                if getattr(args, option.name, option.default) == MISSING:
                    raise UserError(f"--{name} {getattr(args, name)} needs {as_flag(option.name)}")
        return args

    def run(self, args: argparse.Namespace) -> Result:
        """Score every translation with every model."""
        paths = checkpoint_paths(args)
        names = system_names(paths, args.names)
        check_columns(names, EXAMPLE_COLUMNS)
        check_overrides(args, paths, reads_lines=True)
        systems = [score_test_set(args, path) for path in paths]
        examples = systems[0].examples  # those of other systems differ only in the number of preceding sentences
        scores = [system.scores for system in systems]
        right = [[is_right(example_scores) for example_scores in system_scores] for system_scores in scores]
        groups = accuracies(examples, right, args.resamples, args.seed)
        test_set, kind = str(args.test_set or args.source), "mean" if args.normalize else "sum"
        return Result(
            headline=f"accuracy on {test_set}; score: {kind} of the tokens' log-probabilities",
            tables=[summary_table(groups, names)],
            report={
                "test_set": test_set,
                "score": kind,
                "paths": dict(zip(names, paths)),
                "groups": [group.as_dict(names) for group in groups],
                "ambiguous": {name: system.ambiguous for name, system in zip(names, systems)},
                "unknown": {name: system.unknown for name, system in zip(names, systems)},
            },
            footer=unknown_notes(names, systems) + ambiguity_notes(names, systems),
            csv=example_table(examples, names, scores),
            figure=lambda: accuracy_figure(groups, names),
        )


def _add_test_set_options(parser: CommandParser) -> None:
    for option, metavar, help in (
        (
            "--test-set",
            "JSON",
            "contrapro.json (Müller et al. 2018), anaphora.json or lexical-choice.json (Bawden et al. 2018)",
        ),
        ("--source", "FILE", "instead of --test-set: the source sentences, as plain text"),
        ("--reference", "FILE", "with --source: the right translations"),
        ("--contrastive", "FILE", "with --source: the wrong translations of each line"),
        (
            "--preceding",
            "FILE",
            "the preceding source sentence of each line (with --source) or example (of ContraPro), an empty line for "
            "none; further files have the sentences before those, for models that read several",
        ),
        (
            "--preceding-target",
            "FILE",
            "with --preceding: the translations of these sentences, for models that read them",
        ),
        ("--documents", "DIR", "for ContraPro: the folder of the subtitles that its setup_opensubs.sh extracts"),
    ):
        add_file_option(parser, option, help, metavar=metavar, several=option in OPTIONS_WITH_FILES)
    of_text = ("source", "reference", "contrastive")
    parser.add_condition("plain text, not --test-set", lambda args: not args.test_set, *of_text)
    contrapro = "--test-set contrapro.json, without --preceding"
    parser.add_condition(contrapro, lambda args: args.test_set and not args.preceding, "documents")
    parser.add_condition("--preceding", lambda args: args.preceding, "preceding_target")

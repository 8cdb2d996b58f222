"""BLEU by the setting of one option, with a model trained for each setting (Li et al. 2020, Tables 2 and 5; Li, Zhu et
al. 2022, Table 4 and Figure 4).

``ctxgates analyze sweep data-bin/X --option gate-lambda --values 0 0.5 1 2 --save-dir sweeps/lambda --ref test.en
--train "--arch rcg_transformer --load-gate-labels ..." --gen "--beam 4 --remove-bpe" --figure lambda.png``

Each setting has its own folder in ``--save-dir``, with checkpoints, logs and translations. Models and translations that
exist already are not made again, unless the data have changed, and an interrupted training continues from its last
checkpoint.
"""

from __future__ import annotations

import argparse
import os
import shlex
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Sequence

import numpy as np
from fairseq import utils

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import add_resamples_option
from fairseq_ctxgates.analysis.compare import Scores, paired_bootstrap
from fairseq_ctxgates.analysis.figures import colour, error_bar, legend_above, new_figure
from fairseq_ctxgates.analysis.options import add_data_options, add_file_option, add_split_option
from fairseq_ctxgates.analysis.report import Result, add_report_options
from fairseq_ctxgates.analysis.sweep_runs import Run, digests, number_in
from fairseq_ctxgates.analysis.systems import add_reference_options, bleu_metric, check_length, read_references
from fairseq_ctxgates.command_line import language_pair
from fairseq_ctxgates.data.data_directory import find_split, first_data_dir
from fairseq_ctxgates.data.subwords import join_subwords
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import clean_up_on_failure
from fairseq_ctxgates.locks import exclusive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINE = "baseline"


def runs(option: str, values: Sequence[str], save_dir: Path, baseline: Optional[str] = None) -> List[Run]:
    """The runs of a sweep; the baseline comes first if its options are given.

    Raises:
        UserError: a value is given twice, or is the baseline's name, or cannot name a folder.
    """
    if len(set(values)) != len(values):
        raise UserError(f"--values {' '.join(values)}: a value is there twice")
    if os.pathsep in str(save_dir):
        raise UserError(
            f"--save-dir {save_dir}: fairseq-generate takes {os.pathsep!r} for the end of a path; name another"
        )
    for value in values:
        if value in ("", ".", "..", BASELINE) or "/" in value or os.pathsep in value:
            raise UserError(f"--values: {value!r} cannot name a folder")
    first = [] if baseline is None else [Run(BASELINE, split_options(baseline), save_dir / BASELINE)]
    return [*first, *(Run(value, [f"--{option}", value], save_dir / f"{option}={value}") for value in values)]


def split_options(text: str) -> List[str]:
    """Options, split as a shell would split them.

    Raises:
        UserError: a quotation is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text!r}: {error}") from error


def sweep_figure(scores: Scores, option: str, title: str) -> Figure:
    """BLEU with its 95% interval by setting, on a linear scale and in ascending order if all settings are numbers; the
    baseline is a dashed line."""
    systems = dict(zip(scores.names, scores.by_metric["BLEU"]))
    baseline = systems.pop(BASELINE, None)
    figure = new_figure(max(5.0, 1.5 + 0.7 * len(systems)), 3.8)
    axes = figure.add_subplot()
    numbers = [number for number in map(number_in, systems) if number is not None]
    is_scale = len(numbers) == len(systems)
    places: Sequence[float] = numbers if is_scale else range(len(systems))
    points = sorted(zip(places, systems.values()), key=itemgetter(0))
    axes.errorbar(
        [place for place, _ in points],
        [system.score for _, system in points],
        np.transpose([error_bar(system.score, system.interval) for _, system in points]),
        color=colour(0),
        marker="o",
        linestyle="-" if is_scale else "none",
        capsize=3,
        label=f"--{option}",
    )
    if not is_scale:
        axes.set_xticks(range(len(systems)))
        axes.set_xticklabels(systems)
        axes.set_xlim(-0.5, len(systems) - 0.5)
    if baseline is not None:
        axes.axhline(baseline.score, color=colour(1), linestyle="--", label=BASELINE)
    axes.set_xlabel(f"--{option}")
    axes.set_ylabel("BLEU (95% interval)")
    legend_above(axes)
    figure.suptitle(title, fontsize=10)
    return figure


class SweepAnalysis(Analysis):
    """BLEU by the setting of one training option: for each value, a model that is trained by this command, or was
    trained before, translates a split. Every other setting is tested against the first one, or against the baseline.
    """

    name = "sweep"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The data, the option and its values, what to train and translate with, and the files to write."""
        parser.epilog = "A single option for --train, --gen or --baseline needs an equals sign: --gen=--cpu."
        add_data_options(parser, "binarized data directory", "default: from the file names")
        parser.add_argument(
            "--option", required=True, metavar="NAME", help="the fairseq-train option to vary, such as gate-lambda"
        )
        parser.add_argument(
            "--values",
            required=True,
            action="extend",
            nargs="+",
            metavar="VALUE",
            help="its settings, such as 0 0.5 1, or all 1,3-5",
        )
        help_text = "folder of the runs: DIR/NAME=VALUE and DIR/baseline"
        add_file_option(parser, "--save-dir", help_text, metavar="DIR", required=True)
        parser.add_argument(
            "--train",
            metavar="OPTIONS",
            help="the other options of fairseq-train, in quotes; without them, the models must exist already",
        )
        parser.add_argument(
            "--baseline",
            metavar="OPTIONS",
            help="also a run with these training options, in addition to those of --train, instead of the swept one",
        )
        parser.add_argument("--gen", default="", metavar="OPTIONS", help="the options of fairseq-generate, in quotes")
        add_split_option(parser, "the split to translate")
        parser.add_argument(
            "--checkpoint",
            default="checkpoint_best.pt",
            metavar="FILE",
            help="which checkpoint of each run to translate with",
        )
        add_resamples_option(parser)
        add_reference_options(parser)
        add_report_options(parser, csv="the table", figure="BLEU by setting")

    def run(self, args: argparse.Namespace) -> Result:
        """Train and translate what does not exist yet, and score all translations."""
        option = args.option.lstrip("-")
        data_dir = first_data_dir(args.data)
        with clean_up_on_failure():
            scores = score_runs(args, option, data_dir)
        table = scores.table(f"--{option}")
        return Result(
            tables=[table],
            report={"option": option, "data": args.data, "split": args.gen_subset, **scores.as_dict()},
            csv=table,
            figure=lambda: sweep_figure(scores, option, f"{args.gen_subset} of {data_dir.name}"),
            footer=[scores.signatures["BLEU"]],
        )


def score_runs(args: argparse.Namespace, option: str, data_dir: Path) -> Scores:
    """BLEU of the translations of every run, the baseline first.

    Args:
        option: the swept option, without ``--``
        data_dir: the first of the data directories
    """
    metric = bleu_metric(args)
    references = read_references(args)
    languages = language_pair(args, data_dir)
    split = find_split(data_dir, args.gen_subset, *languages)
    sentences = len(split.load_language(languages[1]))
    check_length(args.ref[0], len(references[0]), f"{args.gen_subset} of {args.data}", sentences)
    pair = ["--source-lang", languages[0], "--target-lang", languages[1]]
    data_dirs = [Path(path) for path in utils.split_paths(args.data)]
    trained_on = digests(data_dirs, ("train", "valid"), languages)
    translated = digests(data_dirs[:1], (args.gen_subset,), languages)
    training = None if args.train is None else [*pair, *split_options(args.train)]
    generation = [*pair, *split_options(args.gen)]
    systems = []
    for run in runs(option, args.values, args.save_dir, args.baseline):
        if training is not None:
            run.folder.mkdir(parents=True, exist_ok=True)
        else:
            run.check_trained()
        with exclusive(run.folder / ".lock", f"ctxgates analyze sweep is writing to {run.folder}"):
            if training is not None:
                run.train(args.data, training, args.checkpoint, trained_on)
            lines = run.translate(args.data, args.gen_subset, generation, args.checkpoint, translated)
        check_length(run.folder / f"{args.gen_subset}.out", len(lines), args.ref[0], len(references[0]))
        systems.append((run.name, join_subwords(lines, args.remove_bpe)))
    return paired_bootstrap(systems, references, {"BLEU": metric}, args.resamples)

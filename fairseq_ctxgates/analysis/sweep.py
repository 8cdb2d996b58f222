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
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence

import numpy as np
from fairseq import utils

import ctxgates
from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import add_resamples_option
from fairseq_ctxgates.analysis.compare import Scores, paired_bootstrap
from fairseq_ctxgates.analysis.figures import colour, error_bar, legend_above, new_figure
from fairseq_ctxgates.analysis.options import add_data_options, add_file_option, add_split_option
from fairseq_ctxgates.analysis.report import Result, add_report_options, write_whole
from fairseq_ctxgates.analysis.systems import (
    add_reference_options,
    bleu_metric,
    check_length,
    read_references,
    read_translations,
)
from fairseq_ctxgates.command_line import language_pair
from fairseq_ctxgates.data.data_directory import digest_of, find_split, find_splits, fingerprint, first_data_dir
from fairseq_ctxgates.data.subwords import join_subwords
from fairseq_ctxgates.errors import UserError, one_line
from fairseq_ctxgates.files import clean_up_on_failure
from fairseq_ctxgates.locks import exclusive
from fairseq_ctxgates.processes import ending_with_parent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINE = "baseline"
TAIL = 20  # how many of the log's last lines are shown if a command fails


@dataclass(frozen=True)
class Run:
    """A setting of the option: its name, its training options, and its folder."""

    name: str
    options: Sequence[str]
    folder: Path


def runs(option: str, values: Sequence[str], save_dir: Path, baseline: Optional[str] = None) -> List[Run]:
    """The runs of a sweep; the baseline comes first if its options are given.

    Raises:
        UserError: a value is given twice, or cannot name a folder.
    """
    if len(set(values)) != len(values):
        raise UserError(f"--values {' '.join(values)}: a value is there twice")
    for value in values:
        if value in ("", ".", "..") or "/" in value:
            raise UserError(f"--values: {value!r} cannot name a folder")
    first = [] if baseline is None else [Run(BASELINE, split_options(baseline), save_dir / BASELINE)]
    return [*first, *(Run(value, [f"--{option}", value], save_dir / f"{option}={value}") for value in values)]


def digests(data_dirs: Sequence[Path], names: Sequence[str], languages: Sequence[str]) -> Dict[str, str]:
    """Digests of splits in data directories: of their text with the dictionaries, and of what their side streams were
    made from. They are named by the number of the directory, which may move."""
    found = {}
    for number, data_dir in enumerate(data_dirs, start=1):
        for split in find_splits(data_dir, *languages):
            if split.name in names and split.has_target():
                found[f"{number}/{split.name}"] = json.dumps(fingerprint(split))
                streams = data_dir.glob(f"{split.name}.*.{'-'.join(languages)}.json")
                found.update({f"{number}/{path.name}": digest_of(path) for path in sorted(streams)})
    return found


def is_same_data(before: Dict[str, object], now: Dict[str, str]) -> bool:
    """Whether a provenance has the same digests, as far as both have them: streams may have been added since."""
    known = before.get("data")
    return not isinstance(known, dict) or all(known.get(name, digest) == digest for name, digest in now.items())


def values_of(options: Sequence[str]) -> Dict[str, str]:
    """The options of a command line with their values, as text; the last value of an option counts."""
    values: Dict[str, str] = {}
    flag = ""
    for part in options:
        if part.startswith("-") and _number(part) is None:
            flag, is_given, value = part.partition("=")
            values[flag] = shlex.quote(value) if is_given else ""
        else:
            values[flag] = f"{values.get(flag, '')} {shlex.quote(part)}".strip()
    return values


def check_same_options(run: Run, before: Dict[str, object], options: Sequence[str]) -> None:
    """Raise UserError unless the model of a run, which has this provenance, was trained with these options."""
    trained, given = before.get("options"), values_of(options)
    if not isinstance(trained, dict):
        raise UserError(
            f"{run.folder} holds a model that this command did not train: leave --train out to take it as it is, or "
            f"name another --save-dir, or remove the folder"
        )
    if trained != given:
        there, here = (
            " ".join(f"{name} {value}".strip() for name, value in values.items() if others.get(name) != value)
            for values, others in ((trained, given), (given, trained))
        )
        if before.get("done"):
            remedy = "leave --train out to take it as it is"
        else:
            remedy = "its training was broken off: give the same options to go on with it"
        raise UserError(
            f"{run.folder} holds a model that was trained with other options (there: {there or 'without these'}; "
            f"here: {here or 'without these'}): {remedy}, or name another --save-dir, or remove the folder"
        )


def train(run: Run, data: str, options: Sequence[str], checkpoint: str, data_digests: Dict[str, str]) -> None:
    """Train the model of a run with these options and the run's own, unless it has been trained with them already.

    Args:
        data: the data directories, as fairseq takes them
        data_digests: of what it is trained on; the directories may have moved since

    Raises:
        UserError: the training failed, or the folder holds a model that was trained with other options or on other
            data.
    """
    options = [*options, *run.options]
    provenance_file = run.folder / "train.log.json"
    before = read_provenance(provenance_file)
    if any(run.folder.glob("*.pt")):
        if not is_same_data(before, data_digests):
            raise UserError(
                f"{run.folder} holds a model that was trained on other data than {data} holds now: remove the folder, "
                f"or name another --save-dir"
            )
        check_same_options(run, before, options)
        if before.get("done") and (run.folder / checkpoint).is_file():
            return
    provenance = {"options": values_of(options), "data": data_digests}
    write_provenance(provenance_file, {**provenance, "done": False})
    print(f"training {run.name}: {run.folder / 'train.log'}", flush=True)
    command = ["train", data, *with_plugin(options), "--save-dir", str(run.folder)]
    fairseq(command, run.folder / "train.log", run.folder / "train.log")
    if not (run.folder / checkpoint).is_file():
        raise UserError(f"training did not write {run.folder / checkpoint}: check --checkpoint and --train")
    write_provenance(provenance_file, {**provenance, "done": True})


def check_trained(run: Run) -> None:
    """Raise UserError for a run without a folder, or whose training by this command was broken off."""
    if not run.folder.is_dir():
        raise UserError(f"{run.folder} not found: give --train to have it trained, or check --save-dir")
    provenance_file = run.folder / "train.log.json"
    if read_provenance(provenance_file).get("done") is False:
        raise UserError(
            f"{run.folder} holds a model whose training was broken off: give --train again, which goes on with it, or "
            f"remove {provenance_file} to take the model as it is"
        )


def translate(
    run: Run, data: str, split: str, options: Sequence[str], checkpoint: str, data_digests: Dict[str, str]
) -> List[str]:
    """A run's translations of a split by fairseq-generate with these options; existing ones are not made again.

    Raises:
        UserError: the run has no checkpoint, or fairseq-generate failed.
    """
    path = run.folder / checkpoint
    if not path.is_file():
        raise UserError(f"{path} not found: give --train to have it trained, or check --save-dir and --checkpoint")
    output, provenance_file = run.folder / f"{split}.out", run.folder / f"{split}.out.json"
    provenance = {"options": values_of(options), "checkpoint_time": path.stat().st_mtime_ns}
    before = read_provenance(provenance_file)
    is_same = all(before.get(name) == value for name, value in provenance.items())
    if not (is_same and is_same_data(before, data_digests) and output.exists()):
        if provenance_file.exists():
            provenance_file.unlink()
        print(f"translating with {run.name}: {output}", flush=True)
        output.unlink(missing_ok=True)
        command = ["generate", data, *with_plugin(options), "--path", str(path), "--gen-subset", split]
        # The log has its own file: otherwise one of its lines might appear in the middle of a translation.
        fairseq(command, output, run.folder / f"{split}.log")
        write_provenance(provenance_file, {**provenance, "data": data_digests})
    return read_translations(output)


def read_provenance(path: Path) -> Dict[str, object]:
    """The provenance of a run's file: what made it, and of what; empty if it was not made."""
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}): remove it") from error
    if not isinstance(provenance, dict):
        raise UserError(f"{path} is damaged (it holds no JSON object): remove it")
    return provenance


def write_provenance(path: Path, provenance: Dict[str, object]) -> None:
    """Store the provenance of a run's file."""
    write_whole(path, json.dumps(provenance, indent=2).encode())


def split_options(text: str) -> List[str]:
    """Options, split as a shell would split them.

    Raises:
        UserError: a quotation is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text!r}: {error}") from error


def with_plugin(options: Sequence[str]) -> List[str]:
    """The options, preceded by this plugin's ``--user-dir`` and ``--task`` unless they contain those."""
    defaults = (("--user-dir", ctxgates.user_dir()), ("--task", "context_translation"))
    return [*(part for name, value in defaults if name not in options for part in (name, value)), *options]


def fairseq(command: Sequence[str], output: Path, log: Path) -> None:
    """Run a fairseq command (``train``, ...) with its arguments. What it prints is appended to ``output``, and what it
    logs is appended to ``log``, which may be the same file.

    Raises:
        UserError: the command failed; the message has the end of the log.
    """
    with open(output, "ab") as printed, open(log, "ab") as logged:
        done = subprocess.run(
            ending_with_parent([sys.executable, "-m", f"fairseq_cli.{command[0]}", *command[1:]]),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=logged,
        )
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
        failed = f"fairseq-{shlex.join(command)} failed (status {done.returncode}). The end of {log}:"
        raise UserError("\n".join([failed, *tail]))


def sweep_figure(scores: Scores, option: str, title: str) -> Figure:
    """BLEU with its 95% interval by setting, on a linear scale and in ascending order if all settings are numbers; the
    baseline is a dashed line."""
    systems = dict(zip(scores.names, scores.by_metric["BLEU"]))
    baseline = systems.pop(BASELINE, None)
    figure = new_figure(max(5.0, 1.5 + 0.7 * len(systems)), 3.8)
    axes = figure.add_subplot()
    numbers = [number for number in map(_number, systems) if number is not None]
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


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None


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
            "--baseline", metavar="OPTIONS", help="also a run with these training options instead of the swept one"
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
            check_trained(run)
        with exclusive(run.folder / ".lock", f"ctxgates analyze sweep is writing to {run.folder}"):
            if training is not None:
                train(run, args.data, training, args.checkpoint, trained_on)
            lines = translate(run, args.data, args.gen_subset, generation, args.checkpoint, translated)
        check_length(run.folder / f"{args.gen_subset}.out", len(lines), args.ref[0], len(references[0]))
        systems.append((run.name, join_subwords(lines, args.remove_bpe)))
    return paired_bootstrap(systems, references, {"BLEU": metric}, args.resamples)

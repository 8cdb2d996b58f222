"""BLEU by the setting of one option: a model trained for each (Li et al. 2020, Tables 2 and 5; Li, Zhu et al. 2022,
Table 4 and Figure 4).

``ctxgates analyze sweep data-bin/X --option gate-lambda --values 0 0.5 1 2 --save-dir sweeps/lambda --ref test.en
--train "--arch rcg_transformer --load-gate-labels ..." --gen "--beam 4 --remove-bpe" --figure lambda.png``

Every setting has a folder of its own in ``--save-dir``: the checkpoints, the logs and the translations. What is there
already is not made again, and an interrupted training goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from fairseq import utils

import fairseq_ctxgates
from fairseq_ctxgates.analysis.bootstrap import RESAMPLES
from fairseq_ctxgates.analysis.compare import Scores, compare
from fairseq_ctxgates.analysis.figures import colour, legend_above, new_figure
from fairseq_ctxgates.analysis.inference import find_split, quiet_logging
from fairseq_ctxgates.analysis.report import add_report_options, check_outputs, write_report, write_whole
from fairseq_ctxgates.analysis.systems import (
    add_reference_options,
    bleu_metric,
    check_length,
    join_subwords,
    read_references,
    read_translations,
)
from fairseq_ctxgates.commands.options import language_pair, positive
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import clean_up_on_failure

BASELINE = "baseline"
TAIL = 20  # lines of a log that are shown when its command failed


@dataclass(frozen=True)
class Run:
    """A setting: its name, the training options that make it, and its folder."""

    name: str
    options: Sequence[str]
    folder: Path


def runs(option: str, values: Sequence[str], save_dir: Path, baseline: Optional[str] = None) -> List[Run]:
    """The runs of a sweep, that of the baseline first where there is one.

    Raises:
        UserError: a value is there twice, or cannot name a folder.
    """
    if len(set(values)) != len(values):
        raise UserError(f"--values {' '.join(values)}: a value is there twice")
    for value in values:
        if value in ("", ".", "..") or "/" in value:
            raise UserError(f"--values: {value!r} cannot name a folder")
    first = [] if baseline is None else [Run(BASELINE, split_options(baseline), save_dir / BASELINE)]
    return [*first, *(Run(value, [f"--{option}", value], save_dir / f"{option}={value}") for value in values)]


def train(run: Run, data: Sequence[str], options: Sequence[str], checkpoint: str) -> None:
    """Train the model of a run with these options and the run's own, unless that has been done.

    Raises:
        UserError: the training failed, or the folder holds a model that was trained otherwise.
    """
    command = ["train", *data, *with_plugin(options), *run.options, "--save-dir", str(run.folder)]
    marker = run.folder / "train.log.json"
    before = read_marker(marker)
    if before.get("command") != command and any(run.folder.glob("checkpoint*.pt")):
        raise UserError(
            f"{run.folder} holds a model that was not trained by fairseq-{shlex.join(command)}: leave --train out to "
            f"take it as it is, or name another --save-dir, or remove the folder"
        )
    if before.get("command") == command and before["done"]:
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    write_marker(marker, {"command": command, "done": False})
    print(f"training {run.name}: {run.folder / 'train.log'}", flush=True)
    fairseq(command, run.folder / "train.log", "ab")
    if not (run.folder / checkpoint).is_file():
        raise UserError(f"training did not write {run.folder / checkpoint}: check --checkpoint and --train")
    write_marker(marker, {"command": command, "done": True})


def translate(run: Run, data: Sequence[str], split: str, options: Sequence[str], checkpoint: str) -> List[str]:
    """A run's translations of a split, by fairseq-generate with these options, unless they are there already.

    Raises:
        UserError: the run has no checkpoint, or translating failed.
    """
    path = run.folder / checkpoint
    if not path.is_file():
        raise UserError(f"{path} not found: give --train to have it trained, or check --save-dir and --checkpoint")
    command = ["generate", *data, *with_plugin(options), "--path", str(path), "--gen-subset", split]
    output, marker = run.folder / f"{split}.out", run.folder / f"{split}.out.json"
    made_by = {"command": command, "checkpoint_time": path.stat().st_mtime_ns}
    if read_marker(marker) != made_by or not output.exists():
        if marker.exists():
            marker.unlink()
        print(f"translating with {run.name}: {output}", flush=True)
        fairseq(command, output, "wb")
        write_marker(marker, made_by)
    return read_translations(output)


def read_marker(path: Path) -> Dict[str, Any]:
    """What was made, and how; empty where nothing was."""
    try:
        marker: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): remove it") from error
    return marker


def write_marker(path: Path, marker: Dict[str, Any]) -> None:
    """Note what was made, and how."""
    write_whole(path, json.dumps(marker, indent=2).encode())


def split_options(text: str) -> List[str]:
    """Options as a shell would split them; UserError where a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text!r}: {error}") from error


def with_plugin(options: Sequence[str]) -> List[str]:
    """The options, and where they do not say otherwise the plugin and its task."""
    user_dir = str(Path(fairseq_ctxgates.__file__).parent)
    defaults = (("--user-dir", user_dir), ("--task", "context_translation"))
    return [*(part for name, value in defaults if name not in options for part in (name, value)), *options]


def fairseq(command: Sequence[str], log: Path, mode: str) -> None:
    """Run a fairseq command (``train``, ...) with its arguments, and write all it says to a file, opened in this mode.

    Raises:
        UserError: it failed; the message has the end of the log.
    """
    with open(log, mode) as stream:
        done = subprocess.run(
            [sys.executable, "-m", f"fairseq_cli.{command[0]}", *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
        failed = f"fairseq-{shlex.join(command)} failed (status {done.returncode}). The end of {log}:"
        raise UserError("\n".join([failed, *tail]))


def sweep_figure(scores: Scores, option: str, about: str) -> Any:
    """A matplotlib figure: BLEU with its 95% interval by setting, on a scale where all settings are numbers; the
    baseline is a dashed line."""
    systems = dict(zip(scores.names, scores.by_metric["BLEU"]))
    baseline = systems.pop(BASELINE, None)
    figure = new_figure(max(5.0, 1.5 + 0.7 * len(systems)), 3.8)
    axes = figure.add_subplot()
    places = [_number(name) for name in systems]
    is_scale = None not in places
    bleu = [system.score for system in systems.values()]
    errors = [system.half_width for system in systems.values()]
    axes.errorbar(
        places if is_scale else range(len(systems)),
        bleu,
        errors,
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
    figure.suptitle(about, fontsize=10)
    return figure


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="ctxgates analyze sweep",
        description="BLEU by the setting of one training option: a model for each value, trained here or before, "
        "translates a split. The first, or the baseline, is what the others are tested against.",
        epilog="A single option for --train, --gen or --baseline needs an equals sign: --gen=--cpu.",
    )
    parser.add_argument("data", help="binarized data directory")
    parser.add_argument("-s", "--source-lang", metavar="SRC", help="source language (found from the files)")
    parser.add_argument("-t", "--target-lang", metavar="TRG", help="target language (found from the files)")
    parser.add_argument("--option", required=True, metavar="NAME", help="the fairseq-train option, such as gate-lambda")
    parser.add_argument(
        "--values", required=True, nargs="+", metavar="VALUE", help="its settings: 0 0.5 1, or all 1,3-5"
    )
    parser.add_argument(
        "--save-dir",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder of the runs: DIR/NAME=VALUE and DIR/baseline",
    )
    parser.add_argument(
        "--train",
        metavar="OPTIONS",
        help="the other options of fairseq-train, in quotes; without it, the models are there already",
    )
    parser.add_argument(
        "--baseline", metavar="OPTIONS", help="also a run with these training options in place of the swept one"
    )
    parser.add_argument("--gen", default="", metavar="OPTIONS", help="the options of fairseq-generate, in quotes")
    parser.add_argument("--gen-subset", default="test", metavar="SPLIT", help="the split translated (default: test)")
    parser.add_argument(
        "--checkpoint", default="checkpoint_best.pt", metavar="FILE", help="which of a run's (default: %(default)s)"
    )
    parser.add_argument(
        "--resamples", type=positive, default=RESAMPLES, metavar="N", help="bootstrap resamples (default: %(default)s)"
    )
    add_reference_options(parser)
    add_report_options(parser, csv="the table", figure="BLEU by setting")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train and translate what is not there yet; print the table and write the files that are asked for."""
    args = get_parser().parse_args(argv)
    check_outputs(args)
    quiet_logging()
    with clean_up_on_failure():
        run_sweep(args)


def run_sweep(args: argparse.Namespace) -> None:
    """What the options of :func:`get_parser` ask for."""
    option = args.option.lstrip("-")
    metric = bleu_metric(args)
    references = read_references(args)
    data_dir = Path(utils.split_paths(args.data)[0])
    languages = language_pair(args, data_dir)
    split = find_split(data_dir, args.gen_subset, *languages)
    sentences = len(split.load_language(languages[1]))
    check_length(args.ref[0], len(references[0]), f"{args.gen_subset} of {args.data}", sentences)
    data = [args.data, "--source-lang", languages[0], "--target-lang", languages[1]]
    systems = []
    for run in runs(option, args.values, args.save_dir, args.baseline):
        if args.train is not None:
            train(run, data, split_options(args.train), args.checkpoint)
        lines = translate(run, data, args.gen_subset, split_options(args.gen), args.checkpoint)
        check_length(run.folder / f"{args.gen_subset}.out", len(lines), args.ref[0], len(references[0]))
        systems.append((run.name, join_subwords(lines, args.remove_bpe)))
    scores = compare(systems, references, {"BLEU": metric}, args.resamples)
    table = scores.table(f"--{option}")
    print(table.text())
    print(scores.signatures["BLEU"])
    figure = sweep_figure(scores, option, f"{args.gen_subset} of {data_dir.name}") if args.figure else None
    write_report(
        args, {"option": option, "data": args.data, "split": args.gen_subset, **scores.as_dict()}, table, figure
    )

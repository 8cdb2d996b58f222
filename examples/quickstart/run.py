"""The quick start: from nothing to a table of scores, in a few minutes on two cores.

``python examples/quickstart/run.py`` makes the corpus, learns BPE, binarizes, adds the side streams, then trains,
translates, scores and probes every model of ``models.py``, one on each core. It prints each command as a user would
type it in the demo's folder. The commands' output is kept under ``logs/``, all scores in ``results.json``, and a figure
of the gates in ``gates.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import List, Optional, Sequence

from fairseq_ctxgates.errors import exit_on_user_error
from models import MODELS, PROBES, STREAMS, TEST_SETS, TRAINING, Model

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from report import format_report, read_results  # noqa: E402 (it reads runner.py, one folder up)
from runner import Console, Job, Runner, Step, slug  # noqa: E402
from warm_python import WarmPython  # noqa: E402

SHORT_UPDATES = 100
USER_DIR = '--user-dir "$(ctxgates user-dir)"'
IMPORTED = ("fairseq.trainer", "sacrebleu", "fairseq_ctxgates.tasks", "fairseq_ctxgates.models")
FIGURE = "gates.png"
PAGE = HERE / "README.md"
MARKER = "made-by-quickstart"


def preparation() -> Job:
    """Making the corpus, BPE and the binarized data."""
    texts = [f"{split}.{lang}" for split in ("train", "valid", *TEST_SETS) for lang in ("en", "de")]
    testpref = ",".join(f"bpe/{name}" for name in TEST_SETS)
    steps = [
        Step("corpus", f"python {shlex.quote(str(HERE / 'make_corpus.py'))} corpus", "logs/corpus.log"),
        Step(
            "BPE",
            "mkdir bpe\n"
            "cat corpus/train.en corpus/train.de > bpe/train.both\n"
            "subword-nmt learn-bpe --symbols 2000 < bpe/train.both > bpe/codes\n"
            # <unk> in the text is an unknown word: BPE must leave it whole for fairseq-preprocess to read it as one.
            f"for text in {' '.join(texts)}; do "
            "subword-nmt apply-bpe -c bpe/codes --glossaries '<unk>' < corpus/$text > bpe/$text; done",
            "logs/bpe.log",
        ),
        Step(
            "binarizing",
            "fairseq-preprocess --source-lang en --target-lang de --trainpref bpe/train --validpref bpe/valid "
            f"--testpref {testpref} --destdir data-bin",
            "logs/preprocess.log",
        ),
    ]
    return Job("data", steps)


def evaluation(model: Model, after: Sequence[Job], updates: int) -> Job:
    """The training of a model, after the jobs that make its data, and its measurements."""
    name = slug(model.name)
    folder, checkpoint = f"models/{name}", f"models/{name}/checkpoint_last.pt"
    analyze = f"ctxgates analyze gates data-bin --path {checkpoint} --cpu"
    steps = [
        Step(
            "training",
            f"fairseq-train data-bin {USER_DIR} {model.options} {model.size} {TRAINING} --max-update {updates} "
            f"--save-dir {folder}",
            f"logs/{name}.train.log",
        ),
        *measurement(name, checkpoint),
    ]
    for ablation, overrides in model.ablations:
        steps += measurement(slug(ablation), checkpoint, f'--model-overrides "{overrides}" ')
    if model.has_gates:
        trap = f"--gen-subset {PROBES['probe-collocation']} --json {folder}/trap-gates.json --figure {folder}/{FIGURE}"
        commands = f"{analyze} --gen-subset test --json {folder}/gates.json\n{analyze} {trap}"
        steps.append(Step("gates", commands, f"logs/{name}.gates.log"))
    return Job(model.name, steps, after, updates)


def measurement(name: str, checkpoint: str, overrides: str = "") -> List[Step]:
    """Translation of the test set with a checkpoint, its BLEU, and its scores on the probes.

    Args:
        name: the name of the row, as part of file names
        overrides: ``--model-overrides`` with its value, for an ablation
    """
    folder = f"models/{name}"
    probes = " ".join(f"{split}=corpus/{probe}.probed.tsv" for probe, split in PROBES.items())
    return [
        Step(
            "translating",
            f"mkdir -p {folder}\n"
            f"fairseq-generate data-bin {USER_DIR} --task context_translation --path {checkpoint} {overrides}"
            "--gen-subset test --beam 4 --remove-bpe --max-len-a 2 --max-len-b 10 --batch-size 128 --cpu "
            f"--num-workers 0 > {folder}/generated.txt\n"
            f"grep '^D-' {folder}/generated.txt | sort -t- -k2 -n | cut -f3 > {folder}/test.de\n"
            f"sacrebleu corpus/test.de -i {folder}/test.de -m bleu > {folder}/bleu.json",
            f"logs/{name}.generate.log",
        ),
        Step(
            "probing",
            f"python {shlex.quote(str(HERE / 'probe.py'))} data-bin --path {checkpoint} {overrides}--cpu "
            f"--probes {probes} --json {folder}/probes.json",
            f"logs/{name}.probes.log",
        ),
    ]


def prepare_directory(directory: Path) -> None:
    """Make an empty folder for the demo; an earlier demo in it is removed.

    Raises:
        SystemExit: the folder has other files.
    """
    if directory.exists() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise SystemExit(f"error: {directory} is not empty and not an earlier demo's: give another --directory")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / MARKER).touch()


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Run the quick start: corpus, training, translation, figures.")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("quickstart-demo"),
        help="where everything is written (default: %(default)s)",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"only {SHORT_UPDATES} updates for each model, which only shows that everything runs",
    )
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the demo and print its table."""
    args = get_parser().parse_args(argv)
    directory = args.directory.resolve()
    is_there = (directory / MARKER).exists()
    prepare_directory(directory)
    console = Console()
    if is_there:
        console.say(f"removed the earlier demo in {directory}")
    console.say(f"$ cd {shlex.quote(str(directory))}")
    data = preparation()
    streams = {name: Job(name, [Step("making", STREAMS[name], f"logs/{slug(name)}.log")], [data]) for name in STREAMS}
    # RNNSearch takes longest; if it began last, it would run alone.
    by_cost = sorted(MODELS, key=lambda model: -model.updates)
    evaluations = [
        evaluation(
            model, [data, *map(streams.__getitem__, model.needs)], SHORT_UPDATES if args.short else model.updates
        )
        for model in by_cost
    ]
    runner = Runner(directory, console, at_once=os.cpu_count())
    with tempfile.TemporaryDirectory() as folder:
        programs = WarmPython(Path(folder), IMPORTED, runner.environment)
        runner.environment["PATH"] = f"{programs.folder}{os.pathsep}{runner.environment['PATH']}"
        try:
            runner.run([data, *streams.values(), *evaluations])
        finally:
            programs.close()
    results = read_results(MODELS, directory)
    (directory / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    gated = [slug(model.name) for model in MODELS if model.has_gates]
    shutil.copyfile(directory / "models" / gated[-1] / FIGURE, directory / FIGURE)
    console.say(f"\n{format_report(results)}")
    console.say(f"what each column asks, and what is expected of which model: {PAGE}")
    console.say(f"a picture of the gates over a sentence: {directory / FIGURE}")
    console.say(f"all numbers: {directory / 'results.json'} ({console.seconds:.0f} s)")


if __name__ == "__main__":
    with exit_on_user_error():
        main()

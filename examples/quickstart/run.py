"""The quick start: from nothing to a table of figures, in a few minutes on two cores.

``python examples/quickstart/run.py`` makes the corpus, learns BPE, binarizes, adds the side streams, then trains,
translates, scores and probes every model of ``MODELS``, all at once and each with one thread. It prints each command as
a user would type it in the demo's folder, keeps their output under ``logs/``, and leaves ``results.json`` and a picture
of the gates. A further model is one entry of ``MODELS``, and where it needs one a stream in ``STREAMS``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

HERE = Path(__file__).resolve().parent
UPDATES, SHORT_UPDATES = 1000, 100
# The test sets in the order of fairseq-preprocess --testpref, which names them test, test1, test2, ...
USER_DIR = '--user-dir "$(ctxgates user-dir)"'
TEST_SETS = ("test", "probe-preceding", "probe-relations", "probe-collocation", "probe-unknown")
PROBES = {name: f"test{number}" for number, name in enumerate(TEST_SETS) if name.startswith("probe-")}
FIGURE = "gates.png"
MARKER = "made-by-quickstart"

SPLITS = [("train", "train"), ("valid", "valid"), ("test", "test"), *((split, name) for name, split in PROBES.items())]


def files_by_split(extension: str) -> str:
    """A file of the corpus for each split of the data, as the preprocessing commands are told."""
    return " ".join(f"{split}=corpus/{name}.{extension}" for split, name in SPLITS)


LANGUAGES = "--source-lang en --target-lang de"
STREAMS = {
    "gate labels": f"ctxgates gate-labels data-bin {LANGUAGES}",
    "preceding sentences": f"ctxgates preceding-sentences data-bin {LANGUAGES} --documents {files_by_split('docids')}",
    "relations": f"ctxgates relations data-bin {LANGUAGES} --extractor jsonl "
    f"--relations {files_by_split('tuples.jsonl')}",
}

PLAIN_LOSS = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1"
GATE_LOSS = "--criterion gate_regularized_cross_entropy --label-smoothing 0.1 --gate-lambda 1.0"
TRANSFORMER = (
    "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64 --decoder-embed-dim 64 "
    "--encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128 --encoder-attention-heads 4 --decoder-attention-heads 4"
)
RNNSEARCH = "--encoder-embed-dim 64 --encoder-hidden-size 128"
TRAINING = (
    "--share-decoder-input-output-embed --dropout 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' "
    "--lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 200 --batch-size 64 --seed 1 --cpu --num-workers 0 "
    "--validate-interval 5 --save-interval 5 --no-epoch-checkpoints --log-format json --log-interval 20"
)


class Model(NamedTuple):
    """A row of the table: its name, what ``fairseq-train`` is told beside ``TRAINING``, and the streams that needs. An
    ablation, a row of its own below it, is the same checkpoint under other ``--model-overrides``."""

    name: str
    options: str
    streams: Tuple[str, ...] = ()
    has_gates: bool = False
    ablations: Tuple[Tuple[str, str], ...] = ()
    size: str = TRANSFORMER


MODELS = (
    Model("transformer", f"--task translation --arch transformer {PLAIN_LOSS}"),
    Model("context gates", f"--task context_translation --arch rcg_transformer {PLAIN_LOSS}", has_gates=True),
    Model(
        "regularized gates",
        f"--task context_translation --load-gate-labels --arch rcg_transformer {GATE_LOSS}",
        streams=("gate labels",),
        has_gates=True,
    ),
    Model(
        "inter-sentence gate",
        f"--task context_translation --load-preceding-sentences --arch isg_transformer {PLAIN_LOSS}",
        streams=("preceding sentences",),
        ablations=(("preceding is NULL", "{'inter_sentence_ablation': 'null'}"),),
    ),
    Model(
        "relations",
        f"--task context_translation --load-relations --arch fra_transformer {PLAIN_LOSS}",
        streams=("relations",),
    ),
    Model(
        "Compare Fusion",
        f"--task context_translation --arch fra_transformer --relation-ablation compare {PLAIN_LOSS}",
    ),
    Model("smoothing", f"--task context_translation --arch car_transformer {PLAIN_LOSS}"),
    Model(
        "RNNSearch, inter-sentence gate",
        f"--task context_translation --load-preceding-sentences --arch isg_rnnsearch {PLAIN_LOSS}",
        streams=("preceding sentences",),
        size=RNNSEARCH,
    ),
)


class Step(NamedTuple):
    """A shell command, what it does in a word or two, and the file for its output."""

    what: str
    command: str
    log: str


@dataclass
class Job:
    """Steps that are run one after the other."""

    name: str
    steps: List[Step]
    position: int = -1
    process: Optional[subprocess.Popen[bytes]] = field(default=None, repr=False)

    @property
    def step(self) -> Step:
        """The step that is running, or was the last to run."""
        return self.steps[min(self.position, len(self.steps) - 1)]

    @property
    def done(self) -> bool:
        """Whether every step has been run."""
        return self.position == len(self.steps)


def preparation(streams: Sequence[str]) -> Job:
    """Corpus, BPE, binarized data and the side streams."""
    sides = [f"{split}.{lang}" for split in ("train", "valid", *TEST_SETS) for lang in ("en", "de")]
    testpref = ",".join(f"bpe/{name}" for name in TEST_SETS)
    steps = [
        Step("corpus", f"python {shlex.quote(str(HERE / 'make_corpus.py'))} corpus", "corpus.log"),
        Step(
            "BPE",
            "mkdir bpe && cat corpus/train.en corpus/train.de > bpe/train.both\n"
            "subword-nmt learn-bpe --symbols 2000 < bpe/train.both > bpe/codes\n"
            # <unk> in the text is an unknown word: BPE must leave it whole for fairseq-preprocess to read it as one.
            f"for side in {' '.join(sides)}; do "
            "subword-nmt apply-bpe -c bpe/codes --glossaries '<unk>' < corpus/$side > bpe/$side; done",
            "bpe.log",
        ),
        Step(
            "binarizing",
            "fairseq-preprocess --source-lang en --target-lang de --trainpref bpe/train --validpref bpe/valid "
            f"--testpref {testpref} --destdir data-bin",
            "preprocess.log",
        ),
    ]
    steps += [Step(stream, STREAMS[stream], f"{slug(stream)}.log") for stream in streams]
    return Job("data", steps)


def evaluation(model: Model, updates: int) -> Job:
    """Training of a model and everything that is measured on it."""
    name = slug(model.name)
    folder, checkpoint = f"models/{name}", f"models/{name}/checkpoint_last.pt"
    analyze = f"ctxgates analyze gates data-bin --path {checkpoint} --cpu"
    steps = [
        Step(
            "training",
            f"fairseq-train data-bin {USER_DIR} {model.options} {model.size} {TRAINING} --max-update {updates} "
            f"--save-dir {folder}",
            f"{name}.train.log",
        ),
        *measurements(name, checkpoint),
    ]
    for ablation, overrides in model.ablations:
        steps += measurements(slug(ablation), checkpoint, f'--model-overrides "{overrides}" ')
    if model.has_gates:
        trap = f"--gen-subset {PROBES['probe-collocation']} --json {folder}/trap-gates.json --figure {folder}/{FIGURE}"
        commands = f"{analyze} --gen-subset test --json {folder}/gates.json\n{analyze} {trap}"
        steps.append(Step("gates", commands, f"{name}.gates.log"))
    return Job(model.name, steps)


def measurements(name: str, checkpoint: str, overrides: str = "") -> List[Step]:
    """Translating the test set and scoring the probes with a checkpoint, under ``--model-overrides`` or none."""
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
            f"{name}.generate.log",
        ),
        Step(
            "probing",
            f"python {shlex.quote(str(HERE / 'probe.py'))} data-bin --path {checkpoint} {overrides}--cpu "
            f"--probes {probes} --json {folder}/probes.json",
            f"{name}.probe.log",
        ),
    ]


def slug(name: str) -> str:
    """A name as part of a file name."""
    return name.replace(",", "").replace(" ", "-")


class Console:
    """Lines of text, and below them on a terminal one line of progress; elsewhere the progress now and then."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self, stream: IO[str] = sys.stdout) -> None:
        self._stream = stream
        self._start = time.monotonic()
        self._printed = 0.0
        self._clear = "\r\x1b[K" if stream.isatty() else ""

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        """Print for good."""
        print(f"{self._clear}{text}", file=self._stream, flush=True)

    def progress(self, text: str) -> None:
        """Print until the next call."""
        text = f"[{self.seconds:3.0f} s] {text}"
        if self._clear:
            width = shutil.get_terminal_size().columns - 1
            print(f"{self._clear}{text[:width]}", end="", file=self._stream, flush=True)
        elif self.seconds - self._printed >= self.SECONDS_BETWEEN_LINES:
            self._printed = self.seconds
            self.say(text)


def progress_of(job: Job, directory: Path, updates: int) -> str:
    """What a job is doing; in training also its epoch, updates and loss, from the JSON lines of fairseq's log."""
    if job.done:
        return f"{job.name}: done"
    if job.step.what != "training":
        return f"{job.name}: {job.step.what}"
    log = (directory / "logs" / job.step.log).read_text(encoding="utf-8", errors="replace")
    lines = re.findall(r"\| train_inner \| (\{.*\})", log)
    if not lines:
        return f"{job.name}: starting"
    last = json.loads(lines[-1])
    return f"{job.name}: epoch {last['epoch']}, {last['num_updates']}/{updates} updates, loss {float(last['loss']):.2f}"


def start_next_step(job: Job, directory: Path, console: Console, environment: Dict[str, str]) -> None:
    """Start the step after the one that has ended, or find the job done."""
    job.position += 1
    if job.done:
        return
    for line in job.step.command.splitlines():
        console.say(f"$ {line}")
    with open(directory / "logs" / job.step.log, "wb") as log:
        job.process = subprocess.Popen(
            ["sh", "-e", "-c", job.step.command], cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def run_jobs(jobs: Sequence[Job], directory: Path, console: Console, updates: int) -> None:
    """Run the jobs side by side; end the others, and the program, when a step of one fails."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    try:
        while not all(job.done for job in jobs):
            for job in jobs:
                status = None if job.done or job.process is None else job.process.poll()
                if status:
                    raise SystemExit(failure(job, directory / "logs" / job.step.log, status))
                if not job.done and (job.process is None or status == 0):
                    start_next_step(job, directory, console, environment)
            console.progress(" | ".join(progress_of(job, directory, updates) for job in jobs))
            time.sleep(0.3)
    finally:
        for job in jobs:
            if job.process is not None and job.process.poll() is None:
                job.process.terminate()


def failure(job: Job, log: Path, status: int) -> str:
    """What to tell the user about a step that failed."""
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
    return "\n".join(
        ["", *tail, f"error: {job.name}: {job.step.what} failed with status {status}; its output is in {log}"]
    )


def read_results(models: Sequence[Model], directory: Path) -> Dict[str, Dict[str, Any]]:
    """Everything that was measured, by model."""

    def load(row: str, name: str) -> Any:
        return json.loads((directory / "models" / slug(row) / name).read_text(encoding="utf-8"))

    results = {}
    for model in models:
        for row in (model.name, *(ablation for ablation, _ in model.ablations)):
            results[row] = {"bleu": load(row, "bleu.json"), "probes": load(row, "probes.json")}
        if model.has_gates:
            results[model.name].update(
                gates=load(model.name, "gates.json"), trap_gates=load(model.name, "trap-gates.json")
            )
    return results


def table_rows(results: Dict[str, Dict[str, Any]]) -> Iterator[List[str]]:
    """The header and a row for each model."""
    probes = [probe[len("probe-") :] for probe in PROBES]
    yield ["model", "BLEU", *probes, "gate mean", "variance", "agreement", "hinge", "trap agreement"]
    for name, result in results.items():
        row = [name, f"{result['bleu']['score']:.1f}", *(f"{result['probes'][split]:.2f}" for split in PROBES.values())]
        if "gates" not in result:
            yield [*row, *["—"] * 5]
            continue
        gates, trap = result["gates"]["all"], result["trap_gates"]["all"]
        row += [f"{gates['mean']:.3f}", f"{gates['variance']:.4f}"]
        yield [*row, f"{gates['agreement']:.3f}", f"{gates['hinge']:.4f}", f"{trap['agreement']:.3f}"]


def format_report(results: Dict[str, Dict[str, Any]]) -> str:
    """The table, and below it what its columns were measured on."""
    rows = list(table_rows(results))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    bleu = next(iter(results.values()))["bleu"]
    lines += ["", f"BLEU: test; sacreBLEU {bleu['signature']}"]
    lines += ["preceding to unknown: share of the probed words that the model ranks first, given the words before"]
    gated = next((result for result in results.values() if "gates" in result), None)
    if gated:
        majority = [f"{gated[key]['majority_share']:.3f}" for key in ("gates", "trap_gates")]
        lines += [
            "gates: every component on test, 1 is all source; agreement: share of components on their label's side of",
            "0.5, on test and on the collocation probe (the trap), where always the commoner label would reach "
            + " and ".join(majority),
        ]
    return "\n".join(lines)


def prepare_directory(directory: Path) -> None:
    """Make the demo's folder, empty; an earlier demo in it is removed, anything else refused."""
    if directory.exists() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise SystemExit(f"error: {directory} is not empty and not an earlier demo's: give another --directory")
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "logs").mkdir(parents=True)
    (directory / MARKER).touch()


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Run the quick start: corpus, training, translation, figures.")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("quickstart-demo"),
        help="where everything is made (default: %(default)s)",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"{SHORT_UPDATES} updates in place of {UPDATES}: only shows that all of it runs",
    )
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the demo and print its table."""
    args = get_parser().parse_args(argv)
    directory, updates = args.directory.resolve(), SHORT_UPDATES if args.short else UPDATES
    prepare_directory(directory)
    console = Console()
    console.say(f"$ cd {shlex.quote(str(directory))}")
    streams = sorted({stream for model in MODELS for stream in model.streams})
    run_jobs([preparation(streams)], directory, console, updates)
    run_jobs([evaluation(model, updates) for model in MODELS], directory, console, updates)
    results = read_results(MODELS, directory)
    (directory / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    gated = [slug(model.name) for model in MODELS if model.has_gates]
    shutil.copyfile(directory / "models" / gated[-1] / FIGURE, directory / FIGURE)
    console.say(f"\n{format_report(results)}")
    console.say(f"a picture of the gates over a sentence: {directory / FIGURE}")
    console.say(f"all figures: {directory / 'results.json'} ({console.seconds:.0f} s, {updates} updates)")


if __name__ == "__main__":
    main()

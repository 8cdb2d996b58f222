"""Commands that are killed: what is accepted then, what a rerun makes, and what is left behind.

A killed command runs in a process of its own, which an audit hook kills at one of its renames, removals and new
folders, and others at random moments; ``RELIABILITY=full`` (``make test-reliability``) tries all of them, and 200
moments.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shlex
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

import pytest
import torch
from tqdm import tqdm

from fairseq_ctxgates import analysis
from fairseq_ctxgates.commands import average_checkpoints, gate_labels, preceding_sentences, relations
from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.data.data_directory import find_splits
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences
from fairseq_ctxgates.relations.stream import Relations
from tests.helpers.corpus import binarize
from tests.helpers.damage import IS_FULL
from tests.helpers.fairseq_commands import DECODING, PLAIN, TRAINING, make_pairs
from tests.helpers.files import files_of
from tests.helpers.processes import wait_until
from warm_python import WarmPython

pytestmark = pytest.mark.process
MOMENTS = 200 if IS_FULL else 5
AT_EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}
SPLITS = ("train", "valid")


@dataclass(frozen=True)
class Command:
    """A command that changes a folder.

    Attributes:
        main: runs it with these arguments
        before, after: the arguments of an earlier run and of the one that is killed; {folder} is the folder
        stream: what it writes, if it writes streams
    """

    main: Callable[[List[str]], None]
    before: Sequence[str]
    after: Sequence[str]
    stream: Optional[type[SideStream]] = None

    def run(self, folder: Path, arguments: Sequence[str]) -> None:
        self.main([argument.format(folder=folder) for argument in arguments])


DATA = ("{folder}", "-s", "de", "-t", "en")
COMMANDS = {
    "gate-labels": Command(gate_labels.main, DATA, (*DATA, "--strategy", "mean"), GateLabels),
    "preceding-sentences": Command(
        preceding_sentences.main,
        (*DATA, "--one-document"),
        (*DATA, "--documents", "train={folder}/names", "valid={folder}/names"),
        PrecedingSentences,
    ),
    "relations": Command(
        relations.main,
        (*DATA, "--extractor", "jsonl", "--relations", "train={folder}/old.jsonl", "valid={folder}/old.jsonl"),
        (*DATA, "--extractor", "jsonl", "--relations", "train={folder}/new.jsonl", "valid={folder}/new.jsonl"),
        Relations,
    ),
    "average-checkpoints": Command(
        average_checkpoints.main,
        ("--inputs", "{folder}/1.pt", "--output", "{folder}/average.pt"),
        ("--inputs", "{folder}/1.pt", "{folder}/2.pt", "--output", "{folder}/average.pt"),
    ),
}


def make_folder(folder: Path) -> None:
    """Data and checkpoints on which every command of ``COMMANDS`` can run."""
    pairs = make_pairs(40, seed=1)
    binarize(folder, {split: pairs for split in SPLITS}, "de", "en")
    (folder / "names").write_text("".join(f"{number // 7}\n" for number in range(len(pairs))))
    for name, number in (("old", 1), ("new", None)):
        lines = []
        for source, _ in pairs:
            words = list(range(len(source.split())))
            line = {"words": source.split(), "tuples": [{"subject": words[:number], "relation": [], "object": []}]}
            lines.append(f"{json.dumps(line)}\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))
    for number in (1, 2):
        torch.save({"model": {"weight": torch.full((3,), float(number))}, "args": None}, folder / f"{number}.pt")


def in_child(run: Callable[[], None], kill_at: Optional[int] = None, kill_after: Optional[float] = None) -> int:
    """Run something in a process of its own, which is killed at one of its events or after some seconds.

    Returns:
        the number of its events, or -1 if it was killed
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        events = 0

        def count(event: str, arguments: object) -> None:
            nonlocal events
            if event in AT_EVENTS:
                if events == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                events += 1

        status = 1
        try:
            tqdm.set_lock(threading.RLock())  # tqdm's own is shared between processes: held for ever by a killed one
            sys.addaudithook(count)
            sys.stdout = sys.stderr = open(os.devnull, "w")
            run()
            os.write(writing, str(events).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(reading) as result:
        text = result.read()
    assert status in (0, signal.SIGKILL), "the command failed"
    return int(text) if status == 0 else -1


def accepted(stream: type[SideStream], folder: Path) -> Dict[str, List[List[int]]]:
    """The rows of each split whose stream the task accepts."""
    rows = {}
    for split in find_splits(folder, "de", "en"):
        try:
            rows[split.name] = [row.tolist() for row in stream.load_split(split)]
        except UserError:
            continue
    return rows


@dataclass(frozen=True)
class Outcome:
    """What a folder holds after a run that was not disturbed."""

    files: Dict[str, bytes]
    rows: Dict[str, List[List[int]]]


def outcome(command: Command, folder: Path) -> Outcome:
    return Outcome(files_of(folder), accepted(command.stream, folder) if command.stream else {})


def is_part_of(found: Dict[str, List[List[int]]], rows: Dict[str, List[List[int]]]) -> bool:
    return all(rows[split] == found[split] for split in found)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command(name: str, tmp_path: Path) -> None:
    command = COMMANDS[name]
    make_folder(tmp_path)
    command.run(tmp_path, command.before)
    old = outcome(command, tmp_path)
    started = time.monotonic()
    events = in_child(lambda: command.run(tmp_path, command.after))
    seconds = time.monotonic() - started
    new = outcome(command, tmp_path)
    assert old.files != new.files and events > 0

    def kill_and_check(kill_at: Optional[int] = None, kill_after: Optional[float] = None) -> None:
        command.run(tmp_path, command.before)
        assert files_of(tmp_path) == old.files
        in_child(lambda: command.run(tmp_path, command.after), kill_at, kill_after)
        if command.stream:
            # All old, all new, or some are missing: never some old and some new.
            found = accepted(command.stream, tmp_path)
            assert is_part_of(found, old.rows) or is_part_of(found, new.rows)
        else:
            assert files_of(tmp_path)["average.pt"] in (old.files["average.pt"], new.files["average.pt"])
        command.run(tmp_path, command.after)
        assert files_of(tmp_path) == new.files, "a rerun makes the same bytes, and removes what the killed run left"
        assert not list(tmp_path.glob(".*"))

    for event in range(events) if IS_FULL else sorted({*range(0, events, 7), *range(max(events - 12, 0), events)}):
        kill_and_check(kill_at=event)
    generator = random.Random(1)
    for _ in range(MOMENTS):
        kill_and_check(kill_after=generator.uniform(0, seconds))
    print(f"{name}: {events} renames, removals and new folders, and {MOMENTS} moments")


# --- sweeps, whose trainings and translations are processes of their own --------------------------------------------

# In place of fairseq's commands: a training of three updates that goes on from its last checkpoint, and translations
# that depend on the model's options and on how often it was updated.
STUBS = {
    "train.py": """
import json, os, sys, time
folder = sys.argv[sys.argv.index("--save-dir") + 1]
update = 0
if os.path.exists(f"{folder}/checkpoint_last.pt"):
    with open(f"{folder}/checkpoint_last.pt") as file:
        update = json.load(file)["update"]
while update < 3:
    time.sleep(0.02)
    update += 1
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        with open(f"{folder}/{name}.tmp", "w") as file:
            json.dump({"update": update, "options": sys.argv[1:]}, file)
        os.replace(f"{folder}/{name}.tmp", f"{folder}/{name}")
""",
    "generate.py": """
import json, sys, time
with open(sys.argv[sys.argv.index("--path") + 1]) as file:
    model = json.load(file)
value = int(model["options"][model["options"].index("--dropout") + 1])
for row in range(8):
    print(f"H-{row}\\t-1.0\\ta b c d z{model['update']} z{row % (value + 1)}", flush=True)
    time.sleep(0.002)
""",
}
REFERENCE = "".join(f"a b c d z3 z{row}\n" for row in range(8))


def run_sweep(folder: Path, training: str, values: Sequence[str]) -> None:
    sweep = ["sweep", f"{folder}/data", "--option", "dropout", "--values", *values, "--save-dir", f"{folder}/runs"]
    scoring = ["--ref", f"{folder}/test.en", "--tokenize", "none", "--resamples", "5", "--json", f"{folder}/table.json"]
    analysis.main([*sweep, *scoring, "--gen", shlex.join(DECODING), f"--train={training}"])


def processes_about(folder: Path) -> List[str]:
    """The command lines of the running processes that name a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode())
    return [line for line in lines if str(folder) in line]


def is_free(lock: Path) -> bool:
    """Whether no process holds a lock."""
    with suppress(FileNotFoundError), open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def check_what_a_sweep_left(folder: Path, kill: Callable[[], object], rerun: Callable[[], None]) -> None:
    """Nothing runs any more, what counts as done is whole, and a rerun makes the table of a run that was never
    disturbed, and removes what the killed one left."""
    expected = json.loads((folder / "table.json").read_text())
    runs = folder / "runs"
    translations = {path.parent.name: path.read_bytes() for path in runs.glob("*/test.out")}
    models = {path.parent.name: path.read_bytes() for path in runs.glob("*/checkpoint_best.pt")}
    shutil.rmtree(runs)
    (folder / "table.json").unlink()
    kill()
    locks = [path / ".lock" for path in runs.glob("*")]  # a process that is ending may hold one without a command line
    assert wait_until(lambda: not processes_about(folder) and all(map(is_free, locks))), processes_about(folder)
    for path in runs.glob("*/train.log.json"):
        if json.loads(path.read_text())["done"]:
            assert (path.parent / "checkpoint_best.pt").read_bytes() == models[path.parent.name]
    for path in runs.glob("*/test.out.json"):
        assert path.with_suffix("").read_bytes() == translations[path.parent.name]
    assert not (folder / "table.json").exists() or json.loads((folder / "table.json").read_text()) == expected
    rerun()
    assert json.loads((folder / "table.json").read_text()) == expected
    assert not list(runs.glob(".*")) and not list(runs.glob("*/.*"))


@pytest.fixture
def sweep_folder(tmp_path: Path) -> Path:
    binarize(tmp_path / "data", {split: make_pairs(8, seed=1) for split in ("train", "valid", "test")}, "de", "en")
    (tmp_path / "test.en").write_text(REFERENCE)
    return tmp_path


def test_a_killed_sweep(sweep_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubs = sweep_folder / "stubs" / "fairseq_cli"
    stubs.mkdir(parents=True)
    for name, program in {"__init__.py": "", **STUBS}.items():
        (stubs / name).write_text(program)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(stubs.parent), *filter(None, sys.path)]))
    monkeypatch.chdir(sweep_folder)  # python -m looks here first

    def run() -> None:
        run_sweep(sweep_folder, "--cpu", ["1", "3"])

    run()  # so that Python's caches are filled
    shutil.rmtree(sweep_folder / "runs")
    started = time.monotonic()
    events = in_child(run)
    seconds = time.monotonic() - started
    for event in range(events) if IS_FULL else range(0, events, 6):
        check_what_a_sweep_left(sweep_folder, partial(in_child, run, kill_at=event), run)
    generator = random.Random(1)
    for _ in range(MOMENTS):
        moment = generator.uniform(0, seconds)
        check_what_a_sweep_left(sweep_folder, partial(in_child, run, kill_after=moment), run)
    print(f"sweep: {events} renames, removals and new folders, and {MOMENTS} moments")


@pytest.mark.slow
def test_a_sweep_that_is_killed_while_fairseq_trains(
    sweep_folder: Path, warm_commands: WarmPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = shlex.join([*TRAINING, *PLAIN, "--max-epoch", "12", "--no-epoch-checkpoints"])
    run_folder = sweep_folder / "runs" / "dropout=0"
    last = run_folder / "checkpoint_last.pt"

    def run() -> None:
        run_sweep(sweep_folder, options, ["0"])

    def run_warm() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", warm_commands.python)
            run()

    def kill_in_training() -> None:
        child = os.fork()
        if child == 0:
            try:
                with open(os.devnull, "w") as sys.stdout:
                    run()
            finally:
                os._exit(1)
        assert wait_until(last.exists, 120)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not last.with_name("test.out").exists()

    run_warm()
    check_what_a_sweep_left(sweep_folder, kill_in_training, run_warm)


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    """Also while another process writes the same file, and removes what dead ones left."""
    abandoned = tmp_path / f".a.{'0' * 32}"
    abandoned.write_text("half")
    foreign = tmp_path / ".a.swp"
    foreign.write_text("an editor's")
    with atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("slow")
        with atomic_write(tmp_path / "a") as other:
            other.write_text("fast")
        assert temporary.read_text() == "slow"
    assert files_of(tmp_path) == {"a": b"slow", ".a.swp": b"an editor's"}

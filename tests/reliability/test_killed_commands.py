"""Commands that are killed: what is accepted then, what a rerun makes, and what is left behind.

A killed command runs in a process of its own, which an audit hook kills at one of its renames, removals and new
folders, and others at random moments; ``RELIABILITY=full`` (``make test-reliability``) tries all of them, and 200
moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

import pytest
import torch
from tqdm import tqdm

from fairseq_ctxgates.commands import average_checkpoints, gate_labels, preceding_sentences, relations
from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.data.data_directory import find_splits
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences
from fairseq_ctxgates.relations.stream import Relations
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import make_pairs

pytestmark = pytest.mark.process
IS_FULL = os.environ.get("RELIABILITY") == "full"
AT_EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir"}
SPLITS = ("train", "valid")


@dataclass(frozen=True)
class Command:
    """A command that changes a folder.

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


def contents(folder: Path) -> Dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


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
            rows[split.name] = [row.tolist() for row in stream._load_split(split)]
        except UserError:
            continue
    return rows


@dataclass(frozen=True)
class Outcome:
    """What a folder holds after a run that was not disturbed."""

    files: Dict[str, bytes]
    rows: Dict[str, List[List[int]]]


def outcome(command: Command, folder: Path) -> Outcome:
    return Outcome(contents(folder), accepted(command.stream, folder) if command.stream else {})


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
        assert contents(tmp_path) == old.files
        in_child(lambda: command.run(tmp_path, command.after), kill_at, kill_after)
        if command.stream:
            # All old, all new, or some are missing: never some old and some new.
            found = accepted(command.stream, tmp_path)
            assert is_part_of(found, old.rows) or is_part_of(found, new.rows)
        else:
            assert contents(tmp_path)["average.pt"] in (old.files["average.pt"], new.files["average.pt"])
        command.run(tmp_path, command.after)
        assert contents(tmp_path) == new.files, "a rerun makes the same bytes, and removes what the killed run left"
        assert not list(tmp_path.glob(".*"))

    for event in range(events) if IS_FULL else sorted({*range(0, events, 7), *range(max(events - 12, 0), events)}):
        kill_and_check(kill_at=event)
    generator = random.Random(1)
    for _ in range(200 if IS_FULL else 5):
        kill_and_check(kill_after=generator.uniform(0, seconds))


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
    assert contents(tmp_path) == {"a": b"slow", ".a.swp": b"an editor's"}

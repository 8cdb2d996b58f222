"""Locks: of what two processes would write at once."""

from __future__ import annotations

import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, List, Optional, Tuple

import pytest

from fairseq_ctxgates.commands import gate_labels, preceding_sentences, relations
from fairseq_ctxgates.data.data_directory import find_splits
from fairseq_ctxgates.data.side_stream_files import lock_streams
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.locks import create_locked
from tests.helpers.corpus import binarize
from tests.helpers.files import contents

Main = Callable[[Optional[List[str]]], None]
# By the name of a stream the command that writes it, and its options.
COMMANDS: List[Tuple[str, Main, List[str]]] = [
    ("gate", gate_labels.main, []),
    ("preceding", preceding_sentences.main, ["--one-document"]),
    ("relation", relations.main, ["--extractor", "jsonl", "--relations", "train={folder}/train.jsonl"]),
]


@pytest.mark.parametrize(("stream", "main", "options"), COMMANDS, ids=[stream for stream, _, _ in COMMANDS])
def test_two_runs_on_one_directory(stream: str, main: Main, options: List[str], tmp_path: Path) -> None:
    """The second is refused, says who writes, and changes nothing."""
    data = binarize(tmp_path / "data", {"train": [("a b", "x"), ("a", "y")]}, "de", "en")
    lines = ('{"words": ["a", "b"], "tuples": []}', '{"words": ["a"], "tuples": []}')
    (tmp_path / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    arguments = [str(data), "-s", "de", "-t", "en", *(option.format(folder=tmp_path) for option in options)]
    with lock_streams(stream, find_splits(data, "de", "en"), "the first run"):
        before = contents(data)
        with pytest.raises(UserError, match=rf"the first run is writing to {data} \(process {os.getpid()} on .*wait"):
            main(arguments)
        assert contents(data) == before
    main(arguments)
    assert set(contents(data)) - set(before) >= {f"train.{stream}.de-en.{end}" for end in ("bin", "idx", "json")}
    assert not list(data.glob(".*"))


def test_who_waited_for_a_file_that_is_removed_locks_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two processes would hold the lock, each of a file of its own."""
    path, flock, is_opened = tmp_path / "lock", fcntl.flock, threading.Event()
    held = create_locked(path)
    assert held is not None

    def note_and_wait(descriptor: int, operation: int) -> None:
        is_opened.set()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", note_and_wait)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(create_locked, path)
        assert is_opened.wait(60)
        path.unlink()
        os.close(held)
        descriptor = waiting.result(60)
    assert descriptor is not None
    assert path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())
    os.close(descriptor)

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


def make_data(folder: Path, options: List[str]) -> Tuple[Path, List[str]]:
    """A data directory, and the arguments of a command after it."""
    data = binarize(folder / "data", {"train": [("a b", "x"), ("a", "y")]}, "de", "en")
    lines = ('{"words": ["a", "b"], "tuples": []}', '{"words": ["a"], "tuples": []}')
    (folder / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return data, ["-s", "de", "-t", "en", *(option.format(folder=folder) for option in options)]


@pytest.mark.parametrize(("stream", "main", "options"), COMMANDS, ids=[stream for stream, _, _ in COMMANDS])
def test_two_runs_on_one_directory(stream: str, main: Main, options: List[str], tmp_path: Path) -> None:
    """The second is refused, says who writes, and changes nothing."""
    data, arguments = make_data(tmp_path, options)
    with lock_streams(stream, find_splits(data, "de", "en"), "the first run"):
        before = contents(data)
        with pytest.raises(UserError, match=rf"the first run is writing to {data} \(process {os.getpid()} on .*wait"):
            main([str(data), *arguments])
        assert contents(data) == before
    main([str(data), *arguments])
    assert set(contents(data)) - set(before) >= {f"train.{stream}.de-en.{end}" for end in ("bin", "idx", "json")}
    assert not list(data.glob(".*"))


@pytest.mark.parametrize(("stream", "main", "options"), COMMANDS, ids=[stream for stream, _, _ in COMMANDS])
def test_a_directory_of_links_gets_files_of_its_own(
    stream: str, main: Main, options: List[str], tmp_path: Path
) -> None:
    """The directory that the links point to stays as it is, while another process may write to it."""
    data, arguments = make_data(tmp_path, options)
    main([str(data), *arguments])
    (tmp_path / "links").mkdir()
    for path in data.iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    for path in data.iterdir():  # so that a new file would differ
        if f".{stream}." in path.name or path.name.startswith("pmi."):
            path.write_bytes(b"old")
    before = contents(data)
    with lock_streams(stream, find_splits(data, "de", "en"), "another run"):
        main([str(tmp_path / "links"), *arguments])
    assert contents(data) == before
    made = {path.name for path in (tmp_path / "links").iterdir() if not path.is_symlink()}
    assert made == {name for name, content in before.items() if content == b"old"}


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

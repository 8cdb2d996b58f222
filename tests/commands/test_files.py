"""Files that are written atomically, alone and in groups."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import pytest

from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.data.data_directory import Split, find_splits, fingerprint
from fairseq_ctxgates.data.side_stream_files import write_side_stream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import (
    atomic_write,
    atomic_write_group,
    clean_up_on_failure,
    read_lines,
    scratch_folder,
    write_array,
)
from tests.helpers.corpus import binarize
from tests.helpers.files import contents
from tests.helpers.pages import ROOT
from tests.helpers.processes import wait_until
from warm_python import WarmPython

EXTENSIONS = (".bin", ".idx", ".json")


def write_group(folder: Path, text: str, error: Optional[BaseException] = None) -> None:
    with atomic_write_group([folder / name for name in "ab"], marks=[folder / "c"]) as temporaries:
        for temporary in temporaries:
            temporary.write_text(text)
        if error is not None:
            raise error


def stop_at_rename(number: int, stop: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let something happen in place of the rename with this number, from 0."""
    replace = os.replace
    renamed: List[Path] = []

    def stopping(source: Path, target: Path) -> None:
        if len(renamed) == number:
            stop()
        renamed.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", stopping)


def fill_the_disk() -> None:
    raise OSError(28, "No space left on device")


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


WRITING = """
import sys
from pathlib import Path
from fairseq_ctxgates.files import atomic_write

print("before")
for name in sys.argv[1:]:
    with atomic_write(Path(name)) as temporary:
        temporary.write_text(name + chr(10))
    print("after")
"""


@pytest.mark.process
@pytest.mark.parametrize("redirected", ["> file", ">> file", "| cat >> file"])
def test_what_an_open_file_has_stays(redirected: str, tmp_path: Path, warm_python: WarmPython) -> None:
    """A shell's redirection makes /dev/stdout a file, which is not to be replaced."""
    (tmp_path / "writing.py").write_text(WRITING)
    (tmp_path / "file").write_text("notes\n")
    command = f"{warm_python.python} writing.py /dev/stdout /dev/fd/1 {redirected}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environment)
    lines = (tmp_path / "file").read_text().splitlines()
    notes = [] if redirected == "> file" else ["notes"]
    assert lines == [*notes, "before", "/dev/stdout", "after", "/dev/fd/1", "after"]
    assert {path.name for path in tmp_path.iterdir()} == {"file", "writing.py"}


def test_a_file_that_a_link_points_to_is_replaced(tmp_path: Path) -> None:
    """Of a single file, which the user names."""
    (tmp_path / "a").write_text("old")
    (tmp_path / "link").symlink_to("a")
    with atomic_write(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert contents(tmp_path) == {"a": b"new", "link": b"new"}
    assert (tmp_path / "link").is_symlink()


def test_the_permissions_of_a_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "private"
    for content in ("old", "new"):
        with atomic_write(path) as temporary:
            temporary.write_text(content)
        if content == "old":
            path.chmod(0o600)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)


def test_an_error_names_the_file_and_not_its_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as error, atomic_write(path):
        pass
    assert error.value.filename == str(path)


def test_a_group_of_files(tmp_path: Path) -> None:
    write_group(tmp_path, "old")
    write_group(tmp_path, "new")
    assert contents(tmp_path) == dict.fromkeys("abc", b"new")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
def test_a_group_that_fails_before_the_renames_leaves_the_old_files(tmp_path: Path, error: BaseException) -> None:
    write_group(tmp_path, "old")
    with pytest.raises(type(error)):
        write_group(tmp_path, "new", error)
    assert contents(tmp_path) == dict.fromkeys("abc", b"old")


@pytest.mark.parametrize("rename", range(3))
def test_a_rename_that_fails_leaves_no_file_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rename: int
) -> None:
    (tmp_path / "other").write_text("other")
    write_group(tmp_path, "old")
    stop_at_rename(rename, fill_the_disk, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        write_group(tmp_path, "new")
    assert contents(tmp_path) == {"other": b"other"}


def test_a_rename_that_fails_leaves_the_old_single_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")
    stop_at_rename(0, fill_the_disk, monkeypatch)
    with pytest.raises(OSError, match="No space left"), atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("new")
    assert contents(tmp_path) == {"a": b"old"}


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_renamed_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    """Each file before the first rename, and the names after the last one."""
    done: List[Tuple[str, int]] = []

    def noting(name: str, number_of: Callable[[Any], os.stat_result]) -> None:
        function = getattr(os, name)

        def note(what: Any, *arguments: Any) -> None:
            done.append((name, number_of(what).st_ino))
            function(what, *arguments)

        monkeypatch.setattr(os, name, note)

    noting("fsync", os.fstat)
    noting("replace", os.stat)
    with atomic_write_group([tmp_path / name for name in "ab"], [tmp_path / "c"], durable) as temporaries:
        numbers = [temporary.stat().st_ino for temporary in temporaries]
    renamed = [("replace", number) for number in numbers]
    written, names = [("fsync", number) for number in numbers], ("fsync", tmp_path.stat().st_ino)
    assert len(set(numbers)) == 3
    assert done == ([*written, *renamed, names] if durable else renamed)


@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_command_under_nohup_goes_on(is_ignored: bool) -> None:
    """When the terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        with clean_up_on_failure():
            os.kill(os.getpid(), signal.SIGHUP)
        goes_on = True
    except SystemExit:
        goes_on = False
    finally:
        signal.signal(signal.SIGHUP, before)
    assert goes_on == is_ignored


def test_a_shard_that_still_writes_keeps_no_scratch_folder(tmp_path: Path) -> None:
    """A worker of a cluster that has lost its scheduler runs on for a while."""

    def write_on() -> None:
        with suppress(FileNotFoundError):  # the folder is gone
            while True:
                write_array(scratch / f"{next(names)}.labels", np.arange(3))

    names = count()
    with scratch_folder(tmp_path, "pmi") as scratch:
        shards = [threading.Thread(target=write_on) for _ in range(3)]
        for shard in shards:
            shard.start()
        assert wait_until(lambda: len(list(scratch.iterdir())) > 50)
    for shard in shards:
        shard.join()
    assert contents(tmp_path) == {}


def write_labels(split: Split, rows: List[List[int]]) -> None:
    metadata = {"fingerprint": fingerprint(split)}
    write_side_stream(split.stream_prefix(GateLabels.name), np.uint8, metadata, rows)


@pytest.mark.process
@pytest.mark.parametrize("has_old_stream", [True, False])
@pytest.mark.parametrize("rename", range(3))
def test_a_writer_killed_between_two_renames_leaves_a_stream_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rename: int, has_old_stream: bool
) -> None:
    """Never the data of one stream with the index of another, which here would fit as well."""
    (split,) = find_splits(binarize(tmp_path, {"train": [("a", "x y"), ("b", "y x")]}, "de", "en"), "de", "en")
    if has_old_stream:
        write_labels(split, [[0, 0, 2], [0, 0, 2]])
        assert [row.tolist() for row in GateLabels.load_split(split)] == [[0, 0, 2], [0, 0, 2]]
    process = os.fork()
    if process == 0:
        try:
            stop_at_rename(rename, kill_this_process, monkeypatch)
            write_labels(split, [[1, 1, 2], [1, 1, 2]])
        finally:
            os._exit(1)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    prefix = split.stream_prefix(GateLabels.name)
    assert not Path(f"{prefix}.json").exists()
    with pytest.raises(UserError, match=r"train\.gate\.de-en\.(idx not found|json cannot be read).*gate-labels"):
        GateLabels.load_split(split)

    write_labels(split, [[1, 1, 2], [1, 1, 2]])  # running the command again repairs it
    assert [row.tolist() for row in GateLabels.load_split(split)] == [[1, 1, 2], [1, 1, 2]]
    assert all(Path(f"{prefix}{extension}").exists() for extension in EXTENSIONS)


def test_a_pair_is_replaced_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text("old")
    replace = os.replace

    def fail_at_the_second(source: Path, target: Path) -> None:
        if Path(target) == paths[1]:
            raise OSError("no")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_at_the_second)
    with pytest.raises(OSError), atomic_write_group(paths) as temporaries:
        for temporary in temporaries:
            temporary.write_text("new")
    assert not any(path.exists() for path in paths)


def test_only_at_the_beginning_is_it_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\ufeffa\n\ufeffb\n", encoding="utf-8")
    assert read_lines(tmp_path / "text") == ["a", "\ufeffb"]

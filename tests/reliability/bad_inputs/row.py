"""A row of the table of bad inputs, and the ways to damage a file."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence, Tuple, Union

import numpy as np
import torch

Change = Callable[[], None]  # of the current folder
DATA_ERROR, USAGE_ERROR = 1, 2
NO_PARAMETERS = 'other.pt is not a checkpoint of fairseq: it has no parameters ("model")'


class Row(NamedTuple):
    """One bad input.

    Attributes:
        about: what is wrong, in a few words
        command: the command line, in a folder as ``make_folder`` of ``folder.py`` makes it
        change: what happens to the folder before
        pieces: what the line of the error must contain
        status: the exit status of a ctxgates command
    """

    about: str
    command: str
    change: Change
    pieces: Sequence[str]
    status: int


def bad_file(about: str, command: str, change: Change, *pieces: str) -> Row:
    """A command that reads something damaged."""
    return Row(about, command, change, pieces, DATA_ERROR)


def bad_value(about: str, command: str, *pieces: str) -> Row:
    """A command line that does not fit the folder."""
    return Row(about, command, nothing, pieces, DATA_ERROR)


def bad_usage(about: str, command: str, *pieces: str) -> Row:
    """A command line that the parser of options refuses."""
    return Row(about, command, nothing, pieces, USAGE_ERROR)


# --- changes ----------------------------------------------------------------------------------------------------------


def nothing() -> None:
    """No change."""


def several(*changes: Change) -> Change:
    """One change after the other."""

    def change() -> None:
        for one in changes:
            one()

    return change


def write(path: str, content: Union[str, bytes]) -> Change:
    """A file with this content."""
    return lambda: _write(path, content)


def _write(path: str, content: Union[str, bytes]) -> None:
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def save(path: str, content: Any) -> Change:
    """A file that torch loads."""
    return lambda: torch.save(content, path)


def edit(path: str, function: Callable[[bytes], bytes]) -> Change:
    """A file whose content goes through a function."""
    return lambda: _write(path, function(Path(path).read_bytes()))


def append(path: str, content: bytes) -> Change:
    """A file with more at its end."""
    return edit(path, lambda before: before + content)


def cut(path: str, size: int) -> Change:
    """A file of which only the first bytes are left; a negative size counts from the end."""
    return edit(path, lambda before: before[:size])


def put(path: str, place: int, form: str, *numbers: int) -> Change:
    """A file with other numbers at a place; the form is one of :mod:`struct`, little-endian."""
    content = struct.pack(f"<{form}", *numbers)
    return edit(path, lambda before: before[:place] + content + before[place + len(content) :])


def edit_lines(path: str, function: Callable[[list], Any]) -> Change:
    """A text file whose list of lines a function changes in place, or replaces by another list."""

    def change(before: bytes) -> bytes:
        lines = before.decode("utf-8").splitlines()
        lines = function(lines) or lines
        return "".join(f"{line}\n" for line in lines).encode("utf-8")

    return edit(path, change)


def edit_json(path: str, function: Callable[[Any], Any]) -> Change:
    """A JSON file whose content a function changes in place, or replaces."""

    def change(before: bytes) -> bytes:
        content = json.loads(before)
        return json.dumps(function(content) or content).encode("utf-8")

    return edit(path, change)


def remove(*patterns: str) -> Change:
    """No such files."""

    def change() -> None:
        for path in [path for pattern in patterns for path in Path().glob(pattern)]:
            path.unlink()

    return change


def folder(path: str) -> Change:
    """An empty folder in place of a file."""

    def change() -> None:
        if Path(path).is_file():
            Path(path).unlink()
        Path(path).mkdir()

    return change


def copy(source: str, destination: str) -> Change:
    """A file or a folder in the place of another."""

    def change() -> None:
        if Path(source).is_dir():
            shutil.copytree(source, destination)
        else:
            shutil.copy(source, destination)

    return change


# --- what fairseq's memory-mapped index is made of: magic number, version, type, rows, lengths, pointers
VERSION, TYPE, ROWS, LENGTHS = 9, 17, 18, 26


def swap_pointers(path: str) -> Change:
    """An index whose first two rows lie where the other one is."""

    def change(before: bytes) -> bytes:
        (rows,) = struct.unpack_from("<Q", before, ROWS)
        pointers = np.frombuffer(before, np.int64, count=rows, offset=LENGTHS + 4 * rows).copy()
        pointers[:2] = pointers[1::-1]
        start = LENGTHS + 4 * rows
        return before[:start] + pointers.tobytes() + before[start + 8 * rows :]

    return edit(path, change)


Rows = Tuple[Row, ...]

"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator

import numpy as np


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which becomes ``path`` when the block ends; nothing is left when it fails. To do it
    twice does no harm, also at once, from other threads or machines."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


@contextmanager
def scratch_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder for intermediate results, removed at the end; also removes what a killed run on this machine left."""
    prefix = f".{name}.{socket.gethostname()}"
    for old in folder.glob(f"{prefix}.*"):
        if not is_running(int(old.suffix[1:])):
            shutil.rmtree(old, ignore_errors=True)
    scratch = folder / f"{prefix}.{os.getpid()}"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_running(process: int) -> bool:
    """Whether this machine has a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a file of numbers to a scratch folder, whole or not at all."""
    with atomic_write(path) as temporary:
        array.tofile(temporary)

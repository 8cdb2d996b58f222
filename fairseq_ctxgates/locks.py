"""File locks, which end with the process that holds them: for files being written, and for what dead processes left.

The locks are those of flock(2), which also hold between the machines of a network file system. On a file system without
locks, nothing is locked, and no file is taken to be a dead process's.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterable, Iterator, Optional

from fairseq_ctxgates.errors import UserError


def create_locked(path: Path, wait: bool = True) -> Optional[int]:
    """Create a file, or open it, and lock it.

    Returns:
        the descriptor, which holds the lock until it is closed here and in forked processes; None if another process
        holds the lock and ``wait`` is False
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # a file system without locks
            return descriptor
        if _is_same_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # the process that held the lock has removed the file


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def remove_abandoned(paths: Iterable[Path], remove: Callable[[Path], None] = Path.unlink) -> None:
    """Remove each of these files if the process that made it with :func:`create_locked` no longer runs.

    Args:
        remove: removes a file, and whatever belongs to it
    """
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:  # removed meanwhile, or another user's
            continue
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
        finally:
            os.close(descriptor)


@contextmanager
def exclusive(path: Path, activity: str) -> Iterator[None]:
    """Hold the lock of a file for the block, and remove the file at its end.

    Args:
        activity: what the block does, for the other processes' message: "ctxgates gate-labels writes data-bin/X"

    Raises:
        UserError: another process holds the lock
    """
    descriptor = create_locked(path, wait=False)
    if descriptor is None:
        with suppress(OSError):
            activity = path.read_text(encoding="utf-8").strip() or activity
        raise UserError(f"{activity}: wait until it ends, or stop it")
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = f"{activity} (process {os.getpid()} on {socket.gethostname()}, since {since})\n"
        with suppress(OSError):  # a full disk: the lock works without the text
            os.ftruncate(descriptor, 0)
            os.write(descriptor, holder.encode("utf-8", "backslashreplace"))
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)

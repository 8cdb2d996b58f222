"""Child processes that end with their parent, also when the parent is killed and can stop nothing itself."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Callable, Optional

PR_SET_PDEATHSIG = 1  # of Linux's prctl(2): the signal that a process gets when its parent dies
WATCH_SECONDS = 5  # between two looks at the parent, where there is no such signal

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: between fork and exec it may not be


def ends_with_parent() -> Optional[Callable[[], None]]:
    """For ``subprocess``'s ``preexec_fn``: have the system kill the child when this process dies; None where the system
    does not do so."""
    return None if _libc is None else partial(end_with_parent, os.getpid())


def process_pool(workers: int) -> ProcessPoolExecutor:
    """An executor whose processes end with this one."""
    return ProcessPoolExecutor(workers, initializer=end_with_parent, initargs=(os.getpid(),))


def end_with_parent(parent: int) -> None:
    """End this process when the process that started it dies.

    Args:
        parent: the number of that process, which may be dead already
    """
    if _libc is None:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    else:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)

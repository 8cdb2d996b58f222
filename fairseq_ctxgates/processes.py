"""Child processes that end with their parent, also when the parent is killed and can stop nothing itself.

This file is also a program, which imports nothing but the standard library: ``python processes.py PARENT COMMAND...``
is what :func:`ending_with_parent` makes of a command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import List, Sequence

PR_SET_PDEATHSIG = 1  # of Linux's prctl(2): the signal that a process gets when its parent dies
WATCH_SECONDS = 5  # between two looks at the parent, where there is no such signal


def ending_with_parent(command: Sequence[str]) -> List[str]:
    """A command line whose process, which has the same number, ends when this one dies, or the thread of it that
    started the command ends. Only Linux can do so; elsewhere the command as it is."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", os.path.abspath(__file__), str(os.getpid()), *command]


def process_pool(workers: int) -> ProcessPoolExecutor:
    """An executor whose processes end with this one."""
    return ProcessPoolExecutor(workers, initializer=end_with_parent, initargs=(os.getpid(),))


def end_with_parent(parent: int) -> None:
    """End this process when the process that started it dies.

    Args:
        parent: the number of that process, which may be dead already
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])

"""Child processes that end with their parent, also when the parent is killed and can stop nothing itself.

This file is also a program, which imports nothing but the standard library: ``python processes.py PARENT COMMAND...``
is what :func:`ending_with_parent` makes of a command, and with ``--group`` what :func:`group_ending_with_parent` does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import List, Sequence

PR_SET_PDEATHSIG = 1  # of Linux's prctl(2): the signal that a process gets when its parent dies
PARENT_DIED = signal.SIGUSR1  # for a process that has others to end first; nobody else sends it
GROUP = "--group"
WATCH_SECONDS = 5  # between two looks at the parent, on systems without such a signal
_THIS_PROGRAM = (sys.executable, "-I", os.path.abspath(__file__))


def ending_with_parent(command: Sequence[str]) -> List[str]:
    """A command line whose process ends when this process dies, or when the thread that started it ends. The process
    has the same number as without. Only Linux can do so; elsewhere this is the command as it is."""
    if sys.platform != "linux":
        return list(command)
    return [*_THIS_PROGRAM, str(os.getpid()), *command]


def group_ending_with_parent(command: Sequence[str]) -> List[str]:
    """The same for a command that is started in a session of its own: all processes that it starts there end too, and
    its status is that of a shell, 128 + n after signal n."""
    if sys.platform != "linux":
        return list(command)
    return [*_THIS_PROGRAM, str(os.getpid()), GROUP, *command]


def process_pool(workers: int) -> ProcessPoolExecutor:
    """An executor whose processes end with this one."""
    return ProcessPoolExecutor(workers, initializer=end_with_parent, initargs=(os.getpid(),))


def end_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """End this process when the process that started it dies.

    Args:
        parent: the number of that process, which may be dead already
        signal_number: of the signal that this process gets then
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def _run_group(parent: int, command: Sequence[str]) -> int:
    """Run a command in this process's group, all of which is killed when the parent dies."""
    signal.signal(PARENT_DIED, lambda *_: os.killpg(0, signal.SIGKILL))
    end_with_parent(parent, PARENT_DIED)
    status = subprocess.call(command)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    if sys.argv[2] == GROUP:
        sys.exit(_run_group(int(sys.argv[1]), sys.argv[3:]))
    end_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])

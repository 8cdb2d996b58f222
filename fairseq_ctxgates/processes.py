"""Child processes that end with their parent, even if the parent is killed and cannot stop them itself.

This file is also a program, which imports only the standard library. :func:`ending_with_parent` turns a command into
``python processes.py PARENT COMMAND...``, and :func:`group_ending_with_parent` does so with ``--group``.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Iterator, List, Sequence

PR_SET_PDEATHSIG = 1  # of Linux's prctl(2): the signal that a process gets when its parent dies
PARENT_DIED = signal.SIGUSR1  # for a process that must end others first; nothing else sends it
GROUP = "--group"
WATCH_SECONDS = 5  # between two checks of the parent, on systems without such a signal
_THIS_PROGRAM = (sys.executable, "-I", os.path.abspath(__file__))


def ending_with_parent(command: Sequence[str]) -> List[str]:
    """A command line whose process ends when this process dies, or when the thread that started it ends. The command
    itself runs in that process, with its process id. On systems other than Linux, this is the command unchanged."""
    if sys.platform != "linux":
        return list(command)
    return [*_THIS_PROGRAM, str(os.getpid()), *command]


def group_ending_with_parent(command: Sequence[str]) -> List[str]:
    """The same for a command that is started in a session of its own: all processes that it starts there end too. Its
    exit status is like a shell's, 128 + n after signal n."""
    if sys.platform != "linux":
        return list(command)
    return [*_THIS_PROGRAM, str(os.getpid()), GROUP, *command]


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """An executor whose processes end with this one, and at once after an exception in the block, such as Ctrl-C."""
    with ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(os.getpid(),)) as executor:
        try:
            yield executor
        except BaseException:
            # One may wait forever for what another held, and this process would wait for it at its end.
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _start_worker(parent: int) -> None:
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a shell script
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback after Ctrl-C
    end_with_parent(parent)


def end_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> None:
    """End this process when the process that started it dies.

    Args:
        parent: the id of the process that started this one, which may be dead already
        signal_number: the signal that this process gets then
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

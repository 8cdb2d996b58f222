"""Commands of Python that start at once, because a process that has imported fairseq forks to run them.

Importing torch, fairseq and what they import takes six seconds of processor time, and half as much again when a
training makes its optimizer; the quick start runs some forty commands. While :func:`stand_ins` is open, a shell finds a
stand-in for each (``forking.py``), which has the command run with its arguments, variables, folder, input and outputs,
and ends as it ends. The commands are the installed ones; only their imports are already there.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterator, Sequence

from fairseq_ctxgates.processes import ending_with_parent

FORKING = str(Path(__file__).resolve().with_name("forking.py"))


@contextlib.contextmanager
def stand_ins(commands: Sequence[str], environment: Dict[str, str]) -> Iterator[None]:
    """Put stand-ins first in the ``PATH`` of an environment. Only on Linux, elsewhere forks of such a process may fail.

    Args:
        commands: console scripts of this interpreter's folder, and ``python`` for itself
        environment: of the commands, and of the process that forks to run them
    """
    if sys.platform != "linux":
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        address = os.path.join(folder, "socket")
        for name in commands:
            script = "" if name == "python" else str(Path(sys.executable).parent / name)
            words = [sys.executable, "-IS", FORKING, "stand-in", address, script]
            (Path(folder) / name).write_text(f'#!/bin/sh\nexec {" ".join(map(shlex.quote, words))} "$@"\n')
            (Path(folder) / name).chmod(0o755)
        serve = ending_with_parent([sys.executable, FORKING, "serve", address])
        server = subprocess.Popen(serve, env=environment, stdin=subprocess.DEVNULL)
        before = environment["PATH"]
        environment["PATH"] = f"{folder}{os.pathsep}{before}"
        try:
            yield
        finally:
            environment["PATH"] = before
            server.kill()
            server.wait()

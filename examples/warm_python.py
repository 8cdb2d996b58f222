"""A Python that has imported fairseq already, for runs of many programs.

Importing torch, fairseq and what they import takes six seconds of processor time, and half as much again when training
makes its optimizer. This is most of the time of a short command. A server imports them once. The programs in
:attr:`WarmPython.folder` ask the server for a process of their own, which is forked from the server, has the arguments,
folder, variables, input and output of the program that asked, and runs the same code; what it starts as
``sys.executable`` is such a program, too. Before the server is ready, and where there is none (it needs Linux), the
programs run as usual.

It is not for tests of how processes start and end: the process that runs the code is not a child of the program.
"""

from __future__ import annotations

import argparse
import array
import atexit
import gc
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple

SCRIPTS = ("ctxgates", "fairseq-generate", "fairseq-interactive", "fairseq-preprocess", "fairseq-train", "sacrebleu")
HEADER = struct.Struct("!I")
NUMBER = struct.Struct("!i")
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class WarmPython:
    """Starts the server, and makes the programs that ask it: ``python``, and fairseq's and our own commands.

    Args:
        folder: the folder for the programs and the server's socket
        imported: the names of the modules that are imported beforehand
        environment: the server's variables; those of this process if not given
    """

    def __init__(self, folder: Path, imported: Sequence[str], environment: Optional[Mapping[str, str]] = None) -> None:
        from fairseq_ctxgates.processes import ending_with_parent  # not at the top: the programs do not need it

        self.folder = folder / "bin"
        self.folder.mkdir()
        self.python = str(self.folder / "python")
        self._address = folder / "socket"
        asking = f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" "{self._address}"'
        for name in ("python", *SCRIPTS):
            script = "" if name == "python" else f'"{Path(sys.executable).parent / name}" '
            (self.folder / name).write_text(f'{asking} {script}"$@"\n')
            (self.folder / name).chmod(0o755)
        command = [sys.executable, __file__, "--serve", str(self._address), *imported]
        # A session of its own: Ctrl-C is for the programs that ask.
        self._server = subprocess.Popen(
            ending_with_parent(command), stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )

    def wait(self) -> None:
        """Wait until the server is ready."""
        while not self._address.exists():
            assert self._server.poll() is None, "the server has ended"
            time.sleep(0.05)

    def environment(self, **variables: str) -> Dict[str, str]:
        """The variables of this process and the given ones, with the programs first on PATH."""
        path = os.pathsep.join([str(self.folder), str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, **variables}

    def close(self) -> None:
        """Stop the server, which then forks no more processes."""
        self._server.kill()
        self._server.wait()


# --- the program that asks


def ask(address: str, arguments: List[str]) -> int:
    """Have the server run Python with these arguments, and return the exit status; if a signal ended it, end by the
    same signal."""
    if not (arguments and runs_code(arguments[0])):
        run_as_usual(arguments)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with short_path(address) as path:
                connection.connect(path)
        except OSError:  # there is no server yet, or no longer
            run_as_usual(arguments)
        request = {
            "arguments": arguments,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "python": os.path.join(os.path.dirname(address), "bin", "python"),
        }
        content = json.dumps(request).encode()
        files = array.array("i", [0, 1, 2])
        connection.sendmsg([HEADER.pack(len(content))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        connection.sendall(content)
        (process,) = NUMBER.unpack(receive(connection, NUMBER.size))
        for forwarded in FORWARDED:
            signal.signal(forwarded, lambda signum, _: os.kill(process, signum))
        (status,) = NUMBER.unpack(receive(connection, NUMBER.size))
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in FORWARDED:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def runs_code(argument: str) -> bool:
    """Whether Python's first argument is a file, ``-m`` or ``-c``, and no other option of Python."""
    return argument in ("-m", "-c") or not argument.startswith("-")


def run_as_usual(arguments: List[str]) -> NoReturn:
    """Become Python itself."""
    os.execv(sys.executable, [sys.executable, *arguments])


@contextmanager
def short_path(address: str) -> Iterator[str]:
    """A path to the address that is short enough for a socket, by way of a descriptor of its folder."""
    folder = os.open(os.path.dirname(address), os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(address)}"
    finally:
        os.close(folder)


def receive(connection: socket.socket, size: int) -> bytes:
    """The next bytes of a connection."""
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise EOFError("the other side has ended")
        content += part
    return content


# --- the server


def serve(address: str, imported: Sequence[str]) -> None:
    """Fork a process for each program that asks, and run it there."""
    if sys.platform != "linux":
        return  # forks of a process that has imported so much may fail
    import_all(imported)
    gc.freeze()  # otherwise the first garbage collection of each process would copy everything here
    with socket.socket(socket.AF_UNIX) as listener:
        with short_path(address) as path:
            listener.bind(path)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection:
        request, files = read_request(connection)
        process = os.fork()
        if process != 0:
            keep(connection, process)
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    run_and_exit(request)


def import_all(names: Sequence[str]) -> None:
    """Import modules, and what fairseq's commands import only when they use it. Prints nothing."""
    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            importlib.import_module(name)
        # It keeps the name of the usual Python for processes that inherit descriptors, which the server does not get.
        importlib.import_module("multiprocessing.spawn")
        torch = importlib.import_module("torch")
        torch.optim.Adam([torch.zeros(1)])
        # The first configuration takes Hydra longest.
        importlib.import_module("fairseq.dataclass.utils").convert_namespace_to_omegaconf(argparse.Namespace())
    logging.disable(logging.NOTSET)


def read_request(connection: socket.socket) -> Tuple[Dict[str, Any], array.array]:
    """The request that :func:`ask` sent, and the descriptors of the program's input and output."""
    room = socket.CMSG_LEN(3 * array.array("i").itemsize)
    header, ancillary, _, _ = connection.recvmsg(HEADER.size, room)
    (size,) = HEADER.unpack(header)
    return json.loads(receive(connection, size)), array.array("i", ancillary[0][2])


def keep(connection: socket.socket, process: int) -> None:
    """Tell the program that asked when its process ends; kill the process if the program is killed. Does not return."""
    connection.sendall(NUMBER.pack(process))
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            connection.sendall(NUMBER.pack(status))
            os._exit(0)
        if select.select([connection], [], [], 0.02)[0]:
            os.kill(process, signal.SIGKILL)
            os._exit(0)


def run_and_exit(request: Dict[str, Any]) -> None:
    """Run a program as Python does, except that the imported modules are not torn down at exit, which takes seconds."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable = request["python"]  # the programs that this one starts need no imports either
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", buffering=1 if unbuffered else -1, encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    logging.root.handlers.clear()  # set by the imports; fairseq's commands set up the logger before these
    status: object = 0
    try:
        run(request["arguments"])
    except SystemExit as stop:
        status = stop.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if not isinstance(status, (int, type(None))):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status or 0)


def run(arguments: List[str]) -> None:
    """Run what these arguments of Python say."""
    is_file = arguments[0] not in ("-m", "-c")
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0])) if is_file else os.getcwd()
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = arguments if is_file else [arguments[0], *arguments[2:]]
    if is_file:
        runpy.run_path(arguments[0], run_name="__main__")
    elif arguments[0] == "-m":
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))

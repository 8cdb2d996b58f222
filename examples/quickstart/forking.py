"""Two programs behind ``preloading.py``: the stand-in of a command, and the process that forks to run it.

They talk over a socket: the stand-in sends what it was called with, and its input and outputs; it gets the exit status.
"""

from __future__ import annotations

import argparse
import array
import gc
import importlib.util
import json
import logging
import os
import runpy
import signal
import socket
import sys
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import List, Mapping, NoReturn, Sequence

LENGTH_BYTES = 4  # before each request
STREAMS = array.array("i", [0, 1, 2])  # the stand-in's input and outputs, which become the command's


# The stand-in


def stand_in(address: str, script: str, arguments: List[str]) -> NoReturn:
    """Have a command run, and end as it ends; run it as always while nothing listens yet."""
    if not script:
        script, *arguments = arguments
    request = {"argv": [script, *arguments], "cwd": os.getcwd(), "environment": dict(os.environ)}
    data = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            os.execv(sys.executable, [sys.executable, script, *arguments])
        streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, STREAMS)]
        connection.sendmsg([len(data).to_bytes(LENGTH_BYTES, "big")], streams)
        connection.sendall(data)
        answer = connection.recv(16)
    if not answer:
        sys.exit(f"error: the process that was to run {script} has ended")
    code = int(answer)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


# The process that forks


def serve(address: str) -> NoReturn:
    """Import what the commands import, then listen, and run one in a process of its own for each connection."""
    for name in ("fairseq.trainer", "fairseq.scoring", "sacrebleu"):
        importlib.import_module(name)
    torch = importlib.import_module("torch")
    torch.optim.Adam([torch.zeros(1)])  # imports as much again
    spec = importlib.util.find_spec("fairseq_ctxgates")
    assert spec is not None and spec.submodule_search_locations is not None
    (user_dir,) = spec.submodule_search_locations
    # As --user-dir does it, so that commands find it done.
    importlib.import_module("fairseq.utils").import_user_module(argparse.Namespace(user_dir=user_dir))
    # The import of fairseq sets up logging; its commands do so before it, or not at all if that is done.
    logging.getLogger().handlers.clear()
    logging.getLogger().setLevel(logging.WARNING)
    gc.freeze()  # what is never collected is not copied either
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that nothing is left of processes that have ended
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            attend(connection)
        connection.close()


def attend(connection: socket.socket) -> NoReturn:
    """Run a command for its stand-in, and stop it when that is stopped."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    space = socket.CMSG_SPACE(len(STREAMS) * STREAMS.itemsize)
    length, ((_, _, descriptors), *_), *_ = connection.recvmsg(LENGTH_BYTES, space)
    with connection.makefile("rb") as stream:
        request = json.loads(stream.read(int.from_bytes(length, "big")))
    command = get_context("fork").Process(target=run, args=(array.array("i", descriptors),), kwargs=request)
    command.start()
    if command.sentinel in wait([command.sentinel, connection]):
        command.join()
        connection.send(str(command.exitcode).encode())  # the number of a signal is negative
    else:  # nothing more is sent: the connection was closed
        assert command.pid is not None
        os.killpg(command.pid, signal.SIGKILL)
    os._exit(0)


def run(streams: Sequence[int], argv: List[str], cwd: str, environment: Mapping[str, str]) -> None:
    """Be the command."""
    os.setsid()
    for number, stream in zip(STREAMS, streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(STREAMS[0], closefd=False)  # noqa: SIM115  multiprocessing has closed it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    stand_in(sys.argv[2], sys.argv[3], sys.argv[4:])

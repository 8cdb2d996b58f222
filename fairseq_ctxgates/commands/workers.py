"""Where the shards of long preprocessing run: in this process, in several of this machine, or on a Dask cluster.

Shards find their data by path and leave what is large in files, so that it need not travel through Dask's scheduler:
the machines of a cluster share a file system. A shard may be run twice, where its worker was killed or believed dead,
so what it writes appears under its name when it is whole (see :func:`fairseq_ctxgates.files.write_array`).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import platform
import sys
import threading
import time
import uuid
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.commands.options import positive
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import scratch_folder

CONNECTION_SECONDS = 10
WORKER_SECONDS = 30
WATCH_SECONDS = 10
PACKAGE = "fairseq_ctxgates"


class Workers(NamedTuple):
    """Who runs shards: ``number`` of them at a time, on ``executor``, or one after the other where that is None."""

    number: int
    executor: Optional[Executor]


def add_worker_options(parser: argparse.ArgumentParser, workers: str = "number of processes") -> None:
    """The options ``--workers`` (what it is says ``workers``) and ``--dask`` of a command that hands its shards to
    :func:`open_workers`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--workers", type=positive, default=1, metavar="N", help=workers)
    group.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="instead of --workers, those of the Dask cluster whose scheduler listens there (tcp://HOST:8786), with "
        "the same result. They need this version of the package, and must see the data directories under the same "
        "paths, on a file system that all machines share",
    )


@contextmanager
def open_workers(
    args: argparse.Namespace,
    folders: Sequence[Path],
    pool: Callable[[int], Executor] = ProcessPoolExecutor,
    at_end: Optional[Callable[[], None]] = None,
) -> Iterator[Workers]:
    """Whom the options of :func:`add_worker_options` name.

    Args:
        folders: where shards read and write
        pool: makes the workers of this machine
        at_end: called in this process and on every worker of a cluster before the block is left, also by an exception:
            ends what shards have left running

    Raises:
        UserError: there is no such cluster, its workers run other code or do not see the folders; or, while the block
            runs, workers were lost for good
    """
    with ExitStack() as stack:
        if args.dask is not None:
            workers = stack.enter_context(open_cluster(args.dask, folders, at_end))
        elif args.workers == 1:
            workers = Workers(1, None)
        else:
            workers = Workers(args.workers, stack.enter_context(pool(args.workers)))
        if at_end is not None:
            stack.callback(at_end)
        try:
            yield workers
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was killed, most likely out of memory: lower --workers, or --memory if there is one"
            ) from error


@contextmanager
def open_cluster(address: str, folders: Sequence[Path], at_end: Optional[Callable[[], None]]) -> Iterator[Workers]:
    """The workers of a Dask cluster, after checking that they can do the work; arguments and errors as in
    :func:`open_workers`."""
    distributed = import_distributed()
    with connect(address) as client:
        check_software(client)
        for folder in folders:
            check_folder(client, folder)
        watch_workers(client, address)
        try:
            # Results must not be shared with another run that happens to have equal shards, hence not pure.
            yield Workers(sum(client.nthreads().values()), client.get_executor(pure=False))
        except distributed.scheduler.KilledWorker as error:
            raise UserError(
                f"every Dask worker that was handed a certain shard died, most likely out of memory: "
                f"lower --memory if there is one, or see the workers' logs; the last was {error.last_worker.address}"
            ) from error
        except (distributed.CancelledError, distributed.comm.CommClosedError) as error:
            raise UserError(f"the Dask scheduler at {address} was lost: start it and run the command again") from error
        finally:
            if at_end is not None and client.status == "running":
                client.run(at_end, on_error="ignore")


def import_distributed() -> Any:
    """The module ``distributed``, quiet; UserError where it is not installed."""
    try:
        import distributed
        import distributed.comm
        import distributed.scheduler
    except ImportError as error:
        raise UserError(
            f"--dask needs the package distributed, which cannot be imported ({error}): "
            f"pip install distributed (the extra 'dask' of fairseq-ctxgates)"
        ) from error
    for name in ("distributed", "distributed.client", "asyncio"):  # what they have to say is said here, in one line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def connect(address: str) -> Any:
    """A client of the scheduler at an address, once it has workers.

    Raises:
        UserError: this is no address, nobody listens there in time, or there is no worker in time
    """
    distributed = import_distributed()
    try:
        asyncio.run(knock(address))
        client = distributed.Client(address, timeout=CONNECTION_SECONDS, set_as_default=False)
    except (ValueError, TypeError) as error:  # the latter where Dask is not configured for a tls:// address
        raise UserError(f"--dask {address}: {error}; give a scheduler's address such as tcp://HOST:8786") from error
    except OSError as error:
        raise UserError(
            f"no Dask scheduler answers at {address} ({error}): give the address that 'dask scheduler' prints"
        ) from error
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except (TimeoutError, asyncio.TimeoutError) as error:
        client.close()
        raise UserError(
            f"the Dask scheduler at {address} has no workers: start some with 'dask worker {address}'"
        ) from error
    return client


async def knock(address: str) -> None:
    """Connect to a scheduler and leave: a client that fails in this would leave threads behind."""
    distributed = import_distributed()
    security = distributed.Security().get_connection_args("client")
    (await distributed.comm.connect(address, timeout=CONNECTION_SECONDS, **security)).abort()


def watch_workers(client: Any, address: str) -> None:
    """Tell on standard error when the last worker is lost, as long as the client is open: Dask waits for others."""

    def watch() -> None:
        has_workers = True
        with suppress(Exception):  # the client was closed
            while client.status == "running":
                time.sleep(WATCH_SECONDS)
                had_workers, has_workers = has_workers, bool(client.nthreads())
                if had_workers and not has_workers:
                    tqdm.write(f"all Dask workers are lost: start others with 'dask worker {address}'", file=sys.stderr)

    threading.Thread(target=watch, daemon=True).start()


def check_software(client: Any) -> None:
    """Raise UserError unless all workers run the same code as this process, see :func:`software`."""
    expected = software()
    for address, found in ask_workers(client, software).items():
        for name, version in expected.items():
            if found[name] != version:
                raise UserError(
                    f"the Dask worker {address} has {name} {found[name]} where this command has {version}: "
                    f"start the workers from the same environment"
                )


@lru_cache(maxsize=None)  # the code that this process has imported, whatever is on disk later
def software() -> Dict[str, str]:
    """What has to be the same everywhere: the versions that pickles depend on, and this package by a digest."""
    digest = hashlib.blake2b(digest_size=4)
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    python, numpy = (".".join(version.split(".")[:2]) for version in (platform.python_version(), np.__version__))
    return {"Python": python, "NumPy": numpy, PACKAGE: f"(digest {digest.hexdigest()})"}


def check_folder(client: Any, folder: Path) -> None:
    """Raise UserError unless what workers write in a folder is to be found there by this process."""
    with scratch_folder(folder, "workers") as shared:
        for address, mark in ask_workers(client, leave_mark, shared.absolute()).items():
            if not (shared / mark).exists():
                raise UserError(
                    f"the Dask worker {address} does not see {folder.absolute()} of this machine, or cannot write "
                    f"there: put the data on a file system that all machines share, under the same path"
                )


def leave_mark(folder: Path) -> str:
    """Make an empty file in a folder, if that is possible, and return its name."""
    name = uuid.uuid4().hex
    try:
        (folder / name).touch()
    except OSError:
        pass
    return name


def ask_workers(client: Any, function: Callable, *arguments: Any) -> Dict[str, Any]:
    """What a function of this package returns on each worker, by the worker's address; UserError where it cannot be
    called there."""
    answers = client.run(function, *arguments, on_error="return")
    for address, answer in answers.items():
        if isinstance(answer, Exception):
            raise UserError(
                f"the Dask worker {address} cannot run {PACKAGE} ({answer}): start the workers from the same "
                f"environment as this command, in a clone with its folder in PYTHONPATH"
            ) from answer
    return answers

"""Where the shards of long preprocessing run: in this process, in several local processes, or on a Dask cluster.

The machines of a cluster share a file system. Shards find their data by path and write large results to files, so that
the results do not pass through Dask's scheduler. A shard may run twice, because its worker was killed or did not
answer, so its files are written atomically (see :func:`fairseq_ctxgates.files.write_array`).
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
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, ContextManager, Dict, Iterator, NamedTuple, Optional, Protocol, Sequence, TypeVar

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.command_line import positive
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.extras import needs_extra
from fairseq_ctxgates.files import scratch_folder
from fairseq_ctxgates.processes import process_pool

CONNECTION_SECONDS = 10  # time limit for the connection to the scheduler
WORKER_SECONDS = 30  # time limit until the scheduler has a worker
WATCH_SECONDS = 10  # interval between two checks for lost workers
PACKAGE = "fairseq_ctxgates"
Result = TypeVar("Result")


class DaskClient(Protocol):
    """The part of ``distributed.Client`` that is used here; the package ``distributed`` is optional."""

    status: str

    def nthreads(self) -> Dict[str, int]:
        """The number of threads of each worker."""

    def get_executor(self, *, pure: bool) -> Executor:
        """An executor that runs functions on the workers."""

    def run(self, function: Callable[..., Any], *arguments: object, on_error: str = ...) -> Dict[str, Any]:
        """Call a function on each worker."""

    def wait_for_workers(self, n_workers: int, timeout: float) -> None:
        """Wait until this number of workers is connected."""

    def close(self) -> None:
        """Disconnect from the scheduler."""

    def __enter__(self) -> DaskClient: ...

    def __exit__(self, *exception: object) -> None: ...


class Workers(NamedTuple):
    """``executor`` runs ``num_workers`` shards at a time; without an executor shards run one after the other."""

    num_workers: int
    executor: Optional[Executor]


def add_worker_options(parser: argparse.ArgumentParser, workers_help: str = "number of processes") -> None:
    """Add ``--workers``, with this help text, and ``--dask``: the options that :func:`open_workers` reads."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--workers", type=positive, default=1, metavar="N", help=workers_help)
    group.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="address of a Dask scheduler (tcp://HOST:8786): use the workers of its cluster instead of --workers. The "
        "result is the same. The workers need this version of the package and a shared file system on which the data "
        "directories have the same paths",
    )


@contextmanager
def open_workers(
    args: argparse.Namespace,
    folders: Sequence[Path],
    pool: Callable[[int], ContextManager[Executor]] = process_pool,
    on_exit: Optional[Callable[[], None]] = None,
) -> Iterator[Workers]:
    """The workers that the options of :func:`add_worker_options` name.

    Args:
        folders: folders that shards read and write
        pool: makes an executor with this number of workers on this machine
        on_exit: stops what shards left running; called at the end of the block, also after an exception, in this
            process and on each worker of a cluster

    Raises:
        UserError: the cluster does not answer, its workers run other code or do not see the folders, or the workers
            are lost while the block runs
    """
    with ExitStack() as stack:
        if args.dask is not None:
            workers = stack.enter_context(open_cluster(args.dask, folders, on_exit))
        elif args.workers == 1:
            workers = Workers(1, None)
        else:
            workers = Workers(args.workers, stack.enter_context(pool(args.workers)))
        if on_exit is not None:
            stack.callback(on_exit)
        try:
            yield workers
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was killed, most likely out of memory: lower --workers, or --memory if the command "
                "has it"
            ) from error


@contextmanager
def open_cluster(address: str, folders: Sequence[Path], on_exit: Optional[Callable[[], None]]) -> Iterator[Workers]:
    """Connect to a Dask cluster and check its workers; arguments and errors as in :func:`open_workers`."""
    distributed = import_distributed()
    with connect(address) as client:
        check_software(client)
        for folder in folders:
            check_folder(client, folder)
        watch_workers(client, address)
        try:
            # Not pure: otherwise Dask would share results with another run that has equal shards.
            yield Workers(sum(client.nthreads().values()), client.get_executor(pure=False))
        except distributed.scheduler.KilledWorker as error:
            raise UserError(
                f"each Dask worker that ran a certain shard died, most likely out of memory: lower --memory if the "
                f"command has it, or see the workers' logs; the last was {error.last_worker.address}"
            ) from error
        except (distributed.CancelledError, distributed.comm.CommClosedError) as error:
            raise UserError(f"the Dask scheduler at {address} was lost: start it and run the command again") from error
        finally:
            if on_exit is not None and client.status == "running":
                client.run(on_exit, on_error="ignore")


def import_distributed() -> ModuleType:
    """The module ``distributed``, with its loggers silenced; raises UserError if it is not installed."""
    with needs_extra("dask", "--dask"):
        import distributed
        import distributed.comm
        import distributed.scheduler
    for name in ("distributed", "distributed.client", "asyncio"):  # their errors become a UserError of one line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def connect(address: str) -> DaskClient:
    """Connect to the Dask scheduler at an address, and wait until it has a worker.

    Raises:
        UserError: the address is invalid, no scheduler answers in time, or the scheduler has no worker in time
    """
    distributed = import_distributed()
    try:
        asyncio.run(check_reachable(address))
        client: DaskClient = distributed.Client(address, timeout=CONNECTION_SECONDS, set_as_default=False)
    except (ValueError, TypeError) as error:  # TypeError: Dask is not configured for a tls:// address
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


async def check_reachable(address: str) -> None:
    """Connect to a scheduler and disconnect; a ``distributed.Client`` that cannot connect leaves threads behind."""
    distributed = import_distributed()
    security = distributed.Security().get_connection_args("client")
    connecting = distributed.comm.connect(address, timeout=CONNECTION_SECONDS, **security)
    try:
        # If something other than a scheduler listens there, Dask's own time limit does not end the wait for a greeting.
        (await asyncio.wait_for(connecting, CONNECTION_SECONDS)).abort()
    except asyncio.TimeoutError as error:
        raise OSError(f"nothing that speaks Dask's language answers in {CONNECTION_SECONDS} seconds") from error
    except (MemoryError, OverflowError) as error:  # from reading other bytes as the length of a message
        raise OSError("what answers there does not speak Dask's language") from error


def watch_workers(client: DaskClient, address: str) -> None:
    """Warn on standard error when the last worker is lost: Dask then waits for new workers. The watch ends with the
    client."""

    def watch() -> None:
        has_workers = True
        with suppress(Exception):  # raised when the client is closed
            while client.status == "running":
                time.sleep(WATCH_SECONDS)
                had_workers, has_workers = has_workers, bool(client.nthreads())
                if had_workers and not has_workers:
                    tqdm.write(
                        f"all Dask workers are lost: start new ones with 'dask worker {address}'", file=sys.stderr
                    )

    threading.Thread(target=watch, daemon=True).start()


def check_software(client: DaskClient) -> None:
    """Raise UserError unless all workers run the same code as this process, see :func:`software_versions`."""
    expected = software_versions()
    for address, found in run_on_workers(client, software_versions).items():
        for name, version in expected.items():
            if found[name] != version:
                raise UserError(
                    f"the Dask worker {address} has {name} {found[name]} where this command has {version}: "
                    f"start the workers from the same environment"
                )


@lru_cache(maxsize=None)  # the imported code, also if the files change later
def software_versions() -> Dict[str, str]:
    """What must be equal on all machines: the versions that pickles depend on, and a digest of this package."""
    digest = hashlib.blake2b(digest_size=4)
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    python, numpy = (".".join(version.split(".")[:2]) for version in (platform.python_version(), np.__version__))
    return {"Python": python, "NumPy": numpy, PACKAGE: f"(digest {digest.hexdigest()})"}


def check_folder(client: DaskClient, folder: Path) -> None:
    """Raise UserError unless this process sees the files that each worker writes in a folder."""
    with scratch_folder(folder, "workers") as shared:
        for address, marker in run_on_workers(client, create_marker_file, shared.absolute()).items():
            if not (shared / marker).exists():
                raise UserError(
                    f"the Dask worker {address} does not see {folder.absolute()} of this machine, or cannot write "
                    f"there: put the data on a file system that all machines share, under the same path"
                )


def create_marker_file(folder: Path) -> str:
    """Create an empty file with a unique name in a folder, if possible, and return its name."""
    name = uuid.uuid4().hex
    try:
        (folder / name).touch()
    except OSError:
        pass
    return name


def run_on_workers(client: DaskClient, function: Callable[..., Result], *arguments: object) -> Dict[str, Result]:
    """Call a function of this package on each worker.

    Returns:
        the result of each worker, by its address

    Raises:
        UserError: a worker cannot call the function
    """
    results = client.run(function, *arguments, on_error="return")
    for address, result in results.items():
        if isinstance(result, Exception):
            raise UserError(
                f"the Dask worker {address} cannot run {PACKAGE} ({result}): start the workers from the same "
                f"environment as this command, in a clone with its folder in PYTHONPATH"
            ) from result
    return results

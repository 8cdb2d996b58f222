"""Preprocessing on a Dask cluster: a scheduler and its workers, in processes of their own, some of which are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import psutil
import pytest

import fairseq_ctxgates
from fairseq_ctxgates.commands import workers
from fairseq_ctxgates.commands.gate_labels import get_parser, main
from fairseq_ctxgates.commands.relations import main as add_relations
from fairseq_ctxgates.context_gates.pmi import counting
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction import shards
from tests.helpers.corpus import binarize
from tests.helpers.files import contents
from tests.helpers.pmi import PAIRS, random_pairs
from tests.helpers.processes import wait_until
from warm_python import WarmPython

PACKAGE = Path(fairseq_ctxgates.__file__).parent
SPLITS = {"train": random_pairs(100, seed=4), "valid": random_pairs(20, seed=5)}


class Cluster:
    """A scheduler without workers, and a folder for the files of both. ``python`` is what workers run on."""

    def __init__(self, folder: Path, python: str, stack: ExitStack, **environment: str) -> None:
        self.folder = folder
        self.python = python
        self.stack = stack
        scheduler_file = folder / "scheduler.json"
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", scheduler_file)
        self.process = self._start(sys.executable, "dask_scheduler", *options, **environment)
        address = wait_until(lambda: read_address(scheduler_file), seconds=60)
        assert address is not None
        self.address = address

    def add_worker(self, preload: str = "", **environment: str) -> subprocess.Popen:
        """Start a worker of one thread, wherein this program runs before it takes shards."""
        script = self.folder / "preload.py"
        script.write_text(textwrap.dedent(preload))
        options = ("--no-nanny", "--no-dashboard", "--nthreads", "1", "--local-directory", self.folder)
        number = self._number_of_workers() + 1
        process = self._start(self.python, "dask_worker", self.address, *options, "--preload", script, **environment)
        assert wait_until(lambda: process.poll() is not None or self._number_of_workers() == number, seconds=60)
        assert process.poll() is None
        return process

    def _start(self, python: str, command: str, *arguments: Any, **environment: str) -> subprocess.Popen:
        command_line = [python, "-m", f"distributed.cli.{command}", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment}
        log = self.stack.enter_context(open(self.folder / f"{command}.log", "ab"))
        process = subprocess.Popen(command_line, env=environment, cwd=str(self.folder), stdout=log, stderr=log)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def _number_of_workers(self) -> int:
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            return len(client.nthreads())


def read_address(scheduler_file: Path) -> Optional[str]:
    """The address that a scheduler has written; None before the file is whole, as the scheduler writes it in place."""
    try:
        return str(json.loads(scheduler_file.read_text())["address"])
    except (FileNotFoundError, json.JSONDecodeError):
        return None


@contextmanager
def start_cluster(folder: Path, python: str, **environment: str) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    with ExitStack() as stack:
        yield Cluster(folder, python, stack, **environment)


@pytest.fixture
def cluster(tmp_path: Path, warm_python: WarmPython) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    with start_cluster(tmp_path / "cluster", warm_python.python) as started:
        yield started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return binarize(tmp_path / "data", {"train": PAIRS}, "de", "en")


def killing(process: str, file: str) -> str:
    """A program that kills a process when the package has written, but not yet named, a file whose name ends so."""
    return f"""
        import os, signal
        from pathlib import Path
        import fairseq_ctxgates.files as module

        class Killing:
            def replace(self, source, target):
                if Path(target).name.endswith("{file}"):
                    os.kill({process}, signal.SIGKILL)
                os.replace(source, target)

            def __getattr__(self, name):
                return getattr(os, name)

        module.os = Killing()
    """


@pytest.mark.slow
@pytest.mark.parametrize("array", ["pair_counts", "labels"])
def test_a_killed_worker_changes_no_byte(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], array: str
) -> None:
    """Two workers, one of which dies when it has half written a block of the tables or of the labels."""
    expected = binarize(tmp_path / "expected", SPLITS, "de", "en")
    main([str(expected), "--memory", "4K"])
    found = binarize(tmp_path / "found", SPLITS, "de", "en")
    cluster.add_worker()
    killed = cluster.add_worker(killing("os.getpid()", f".{array}"))
    monkeypatch.chdir(tmp_path)  # the workers are elsewhere
    main(["found", "--memory", "4K", "--dask", cluster.address])
    assert killed.wait(60) == -signal.SIGKILL
    assert contents(found) == contents(expected)
    assert "pairs/s" in capsys.readouterr().err


@pytest.fixture
def english(tmp_path: Path) -> Path:
    """English sentences for parsers, as two data directories that are the same."""
    nouns = "farmer teacher girl doctor".split()
    train = [f"the {noun} {rest} ." for noun in nouns for rest in ("sells apples", "reads a story", "visited Paris")]
    for name in ("expected", "found"):
        binarize(tmp_path / name, {"train": [(line, line) for line in [*train, *train[:2]]]}, "en", "de")
    return tmp_path


@pytest.mark.slow
def test_relations_with_a_killed_worker(
    cluster: Cluster,
    english: Path,
    corenlp_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same for relations, with a CoreNLP server that all workers ask."""
    monkeypatch.setattr(shards, "SHARD_SENTENCES", 2)
    options = ["-s", "en", "-t", "de", "--corenlp-url", corenlp_url]
    add_relations([str(english / "expected"), *options])
    cluster.add_worker()
    killed = cluster.add_worker(killing("os.getpid()", ""))
    monkeypatch.chdir(english)
    add_relations(["found", *options, "--dask", cluster.address])
    assert killed.wait(60) == -signal.SIGKILL
    assert contents(english / "found") == contents(english / "expected")
    assert "12/12" in capsys.readouterr().err


@pytest.mark.slow
def test_relations_by_a_server_that_a_worker_starts(cluster: Cluster, english: Path, corenlp_url: str) -> None:
    """The worker's own CoreNLP server finds the same, and is ended with the run."""
    cluster.python = sys.executable  # whose children are its own
    options = ["-s", "en", "-t", "de"]
    add_relations([str(english / "expected"), *options, "--corenlp-url", corenlp_url])
    worker = psutil.Process(cluster.add_worker().pid)
    had_server = threading.Event()

    def watch() -> None:
        while worker.is_running() and not had_server.wait(0.1):
            if has_server(worker):
                had_server.set()

    threading.Thread(target=watch, daemon=True).start()
    add_relations([str(english / "found"), *options, "--corenlp-memory", "2G", "--dask", cluster.address])
    assert contents(english / "found") == contents(english / "expected")
    assert had_server.is_set() and not has_server(worker)


def has_server(worker: psutil.Process) -> bool:
    """Whether a worker has a CoreNLP server."""
    names = []
    for child in worker.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            names.append(child.name())
    return "java" in names


@pytest.mark.slow
def test_a_shard_that_kills_every_worker(data: Path, tmp_path: Path, warm_python: WarmPython) -> None:
    before = contents(data)
    with start_cluster(tmp_path, warm_python.python, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0") as cluster:
        cluster.add_worker(killing("os.getpid()", ".labels"))
        cluster.add_worker()
        with pytest.raises(UserError, match="died, most likely out of memory: .* the last was tcp://127.0.0.1:"):
            main([str(data), "--memory", "1K", "--dask", cluster.address])
    assert contents(data) == before


@pytest.mark.slow
def test_a_scheduler_that_is_killed(cluster: Cluster, data: Path) -> None:
    """Run as a script: one line says so, and nothing is left behind."""
    before = contents(data)
    cluster.add_worker(killing(str(cluster.process.pid), ".pair_counts"))
    script = PACKAGE.parent / "preprocess" / "gate_labels.py"
    done = subprocess.run([sys.executable, str(script), str(data), "--dask", cluster.address], capture_output=True)
    assert done.returncode == 1
    printed = done.stderr.decode()
    assert printed.splitlines()[-1].startswith(f"error: the Dask scheduler at {cluster.address} was lost")
    assert "Traceback" not in printed
    assert contents(data) == before


@pytest.mark.slow
def test_when_all_workers_are_lost_others_can_go_on(
    cluster: Cluster, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = binarize(tmp_path / "expected", {"train": PAIRS}, "de", "en")
    main([str(expected)])
    monkeypatch.setattr(workers, "WATCH_SECONDS", 0.2)
    write = workers.tqdm.write

    def start_another(text: str, file: Any) -> None:
        write(text, file=file)
        cluster.add_worker()

    monkeypatch.setattr(workers.tqdm, "write", start_another)
    cluster.add_worker(killing("os.getpid()", ".labels"))
    main([str(data), "--dask", cluster.address])
    told = f"all Dask workers are lost: start new ones with 'dask worker {cluster.address}'"
    assert capsys.readouterr().err.count(told) == 1
    assert contents(data) == contents(expected)


@pytest.mark.process
@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "web server"])
def test_an_address_where_something_else_listens(data: Path, monkeypatch: pytest.MonkeyPatch, greeting: bytes) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "CONNECTION_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            connection.sendall(greeting)
            while connection.recv(1 << 16):
                pass  # and stay

        threading.Thread(target=greet, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Dask scheduler answers at {address} .*Dask's language"):
            main([str(data), "--dask", address])


@pytest.mark.process
def test_an_address_where_nobody_listens(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "CONNECTION_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Dask scheduler answers at {address} .*'dask scheduler' prints"):
            main([str(data), "--dask", address])
    problems = {
        "localhost": "missing port number",
        "http://localhost:8786": "unknown address scheme",
        "tls://localhost:8786": "TLS expects",
    }
    for address, problem in problems.items():
        with pytest.raises(UserError, match=f"--dask {address}: {problem}.*; give .* tcp://HOST:8786"):
            main([str(data), "--dask", address])


def test_a_scheduler_without_workers(cluster: Cluster, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORKER_SECONDS", 1)
    with pytest.raises(UserError, match=f"has no workers: start some with 'dask worker {cluster.address}'"):
        main([str(data), "--dask", cluster.address])


def test_a_worker_that_does_not_see_the_data(cluster: Cluster, data: Path) -> None:
    before = contents(data)
    cluster.add_worker(
        """
        import pathlib

        def touch(path):
            raise FileNotFoundError(path)

        pathlib.Path.touch = touch
        """
    )
    with pytest.raises(UserError, match=rf"Dask worker tcp://127.* does not see {data} .*all machines share"):
        main([str(data), "--dask", cluster.address])
    assert contents(data) == before


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda package: (package / "commands" / "workers.py").write_text("import absent"),
            r"cannot run fairseq_ctxgates \(.*No module named",
        ),
        (
            lambda package: (package / "another.py").write_text(""),
            r"has fairseq_ctxgates \(digest \w+\) where this command has \(digest \w+\): .*same environment",
        ),
    ],
)
def test_a_worker_with_other_code(
    cluster: Cluster, data: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "other" / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    change(tmp_path / "other" / PACKAGE.name)
    cluster.add_worker(PYTHONPATH=str(tmp_path / "other"))
    with pytest.raises(UserError, match=f"Dask worker {cluster.address.rpartition(':')[0]}:.*{message}"):
        main([str(data), "--dask", cluster.address])


def test_distributed_that_is_not_installed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match="--dask needs distributed .*pip install 'fairseq-ctxgates.dask.'"):
        main([str(data), "--dask", "tcp://localhost:8786"])


def test_processes_and_a_cluster_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        get_parser().parse_args(["data", "--workers", "2", "--dask", "tcp://localhost:8786"])
    assert "--dask: not allowed with argument --workers" in capsys.readouterr().err


@pytest.mark.process
def test_a_killed_process(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cluster: a process of ``--workers`` is killed."""
    before = contents(data)
    monkeypatch.setattr(counting, "tally_block", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(UserError, match="a worker process was killed, most likely out of memory: lower --workers"):
        main([str(data), "--workers", "2"])
    assert contents(data) == before

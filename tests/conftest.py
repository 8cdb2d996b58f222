"""Fixtures that several test files share, and the fast tier: ``pytest --fast``, or ``make test-fast``."""

from __future__ import annotations

import multiprocessing.process
import os
import platform
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, List

import pytest

# What imports fairseq, which takes seconds, is imported where it is used: this file is also read by the process of
# pytest-xdist that hands out the tests.
if TYPE_CHECKING:
    from fairseq_ctxgates.relations.extraction.corenlp_server import ManagedServer
    from tests.helpers.extractors import StubExtractor
    from tests.helpers.trained import Trained
    from warm_python import WarmPython

# --- the fast tier ----------------------------------------------------------------------------------------------------

collect_ignore: List[str] = []  # read by pytest
# These start processes, or train models.
COSTLY_FIXTURES = {
    *("corenlp_server", "cluster", "warm_commands", "warm_python"),
    *("checkpoint", "checkpoints", "trained", "trained_on_documents"),
}
PROCESS_EVENTS = {
    *("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"),
    "socket.bind",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="leave out tests/system, costly fixtures and tests marked slow or process; starting a process is an error",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        collect_ignore.append("system")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    """Keep tests together in one process of pytest-xdist that share a costly fixture, which each process would make for
    itself. With --fast leave out what is not fast."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        file = item.nodeid.partition("::")[0]
        shared = {"corenlp_server": "corenlp", "trained_on_documents": "documents", "trained": file}
        for fixture, group in shared.items():
            if fixture in fixtures:
                item.add_marker(pytest.mark.xdist_group(group))
                break
    if config.getoption("--fast"):
        left_out = [item for item in items if not is_fast(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_fast(item)]


def is_fast(item: pytest.Item) -> bool:
    is_marked = any(item.get_closest_marker(name) for name in ("slow", "process"))
    return not is_marked and COSTLY_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session", autouse=True)
def _no_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --fast, starting a process or a server is an error."""
    if not request.config.getoption("--fast"):
        yield
        return
    # These start a process the first time: matplotlib to look for fonts, NumPy before 2, and Python, whom gensim asks.
    import matplotlib.font_manager  # noqa: F401
    import numpy.testing  # noqa: F401

    platform.processor()

    is_refused = True

    def refuse(event: str, args: Any = None) -> None:
        if is_refused and event in PROCESS_EVENTS:
            raise AssertionError(f"{event}: with --fast no test starts a process or a server: mark it `process`")

    sys.addaudithook(refuse)  # which cannot be removed again
    # multiprocessing's "spawn" raises no audit event.
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", lambda _: refuse("os.spawn"))
        yield
    is_refused = False


# --- fairseq's commands -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def _configurations() -> Iterator[None]:
    from tests.helpers.configurations import composing_once

    with composing_once():
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The random numbers of a test do not depend on the tests before it."""
    import torch

    torch.manual_seed(1)


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Programs that start without importing fairseq. They import this package, so that how this is done is tested."""
    with _started(tmp_path_factory, "fairseq", "numba", "sacrebleu") as programs:
        yield programs


@pytest.fixture(scope="session")
def warm_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Programs that start without importing fairseq and this package; for long chains of commands."""
    package = ("fairseq_ctxgates.tasks", "fairseq_ctxgates.models")
    with _started(tmp_path_factory, "fairseq.trainer", "matplotlib.pyplot", "numba", "sacrebleu", *package) as programs:
        yield programs


@contextmanager
def _started(tmp_path_factory: pytest.TempPathFactory, *imported: str) -> Iterator[WarmPython]:
    from warm_python import WarmPython

    # The path is longer than that of a socket may be.
    programs = WarmPython(tmp_path_factory.mktemp(f"warm_python{'_' * 108}"), imported)
    programs.wait()
    yield programs
    programs.close()


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's softmax stays in float64."""
    from tests.helpers.models import keep_float64

    keep_float64(monkeypatch)


@pytest.fixture
def without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN does not round float32 in recurrent networks and convolutions, as torch lets it."""
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def no_grad() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


# --- data and models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of ``helpers/documents.py``. Not to be changed."""
    from tests.helpers.documents import binarize_documents

    return binarize_documents(tmp_path_factory.mktemp("documents") / "data")


@pytest.fixture(scope="session")
def trained_on_documents(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The models of ``helpers/documents.py``. Not to be changed."""
    from tests.helpers.documents import train_on_documents

    return train_on_documents(documents, tmp_path_factory.mktemp("trained_on_documents"))


@pytest.fixture
def extractor() -> Iterator[StubExtractor]:
    """An extractor in place of every parser."""
    from tests.helpers.extractors import StubExtractor, parsing_by

    made = StubExtractor()
    with parsing_by(made):
        yield made


@pytest.fixture(scope="session")
def corenlp_server() -> Iterator[ManagedServer]:
    """A real CoreNLP server that this package started. Where Java or CoreNLP is not there the test is skipped, or fails
    if the environment variable CTXGATES_REQUIRE_CORENLP is set."""
    from fairseq_ctxgates.errors import UserError
    from fairseq_ctxgates.relations.extraction.corenlp import request_properties
    from fairseq_ctxgates.relations.extraction.corenlp_server import ManagedServer, check_installation

    try:
        check_installation()
    except UserError as error:
        if os.environ.get("CTXGATES_REQUIRE_CORENLP"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    server = ManagedServer(request_properties("corenlp-openie", "en"), timeout=60, memory="3G")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def corenlp_url(corenlp_server: ManagedServer) -> str:
    """Its address, with user name and password, for ``--corenlp-url``."""
    assert corenlp_server.credentials is not None
    return corenlp_server.url.replace("//", "//{}:{}@".format(*corenlp_server.credentials))

"""A CoreNLP server that we start is closed to everybody else: see docs/reliability.md."""

from __future__ import annotations

import stat
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import List
from urllib.parse import urlsplit

import pytest
import requests

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction import build
from fairseq_ctxgates.relations.extraction.corenlp_server import SPLIT_ONLY, ExternalServer, ManagedServer
from tests.helpers.extractors import make_extractor

CONTEXTS = ["/", "/tokensregex?pattern=a", "/semgrex?pattern=a", "/tregex?pattern=a", "/scenegraph", "/shutdown?key=a"]
NO_MODELS = {**SPLIT_ONLY, "pipelineLanguage": "english"}  # so that a server starts quickly
SENTENCE = "The old farmer sells fresh apples ."


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def command_line(server: ManagedServer) -> List[str]:
    assert server._process is not None
    return Path(f"/proc/{server._process.server.pid}/cmdline").read_text().split("\0")


def private_folder(server: ManagedServer) -> Path:
    (option,) = (word for word in command_line(server) if word.startswith("-Djava.io.tmpdir="))
    return Path(option.partition("=")[2])


@pytest.mark.parametrize("context", CONTEXTS)
def test_refuses_requests_without_its_password(corenlp_server: ManagedServer, context: str) -> None:
    assert corenlp_server.credentials is not None
    user, password = corenlp_server.credentials
    for wrong in (None, (user, "password"), ("user", password)):
        assert requests.post(corenlp_server.url + context, data=SENTENCE, auth=wrong).status_code == 401


def test_answers_us(corenlp_server: ManagedServer) -> None:
    (sentence,) = corenlp_server.annotate(SENTENCE).sentence
    assert [token.word for token in sentence.token] == SENTENCE.split()


def test_a_server_of_the_users_own_with_a_password(
    corenlp_server: ManagedServer, corenlp_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In its address, or in the file that .netrc is; without it one line says so, and never shows the password."""
    assert corenlp_server.credentials is not None
    user, password = corenlp_server.credentials
    assert f"//{user}:{password}@" in corenlp_url
    with make_extractor("corenlp-openie", "en", [corenlp_url]) as extractor:
        expected = extractor.extract([SENTENCE.split()])
    assert expected[0]

    with pytest.raises(UserError, match=r"at http://localhost:\d+ cannot be used: .*401.*user:password@"):
        make_extractor("corenlp-openie", "en", [corenlp_server.url])
    wrong = corenlp_url.replace(password, "false")
    with pytest.raises(UserError, match=r"at http://localhost:\d+ cannot be used: .*401.*user:password@") as refusal:
        make_extractor("corenlp-openie", "en", [wrong])
    assert "false" not in str(refusal.value)

    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine localhost login {user} password {password}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with make_extractor("corenlp-openie", "en", [corenlp_server.url]) as extractor:
        assert extractor.extract([SENTENCE.split()]) == expected


def test_the_password_of_an_address_may_hold_any_character() -> None:
    server = ExternalServer("http://some%40one:a%3Ab%2F%2C@example.org:9000/corenlp/", {}, timeout=1)
    assert (server.url, server.credentials) == ("http://example.org:9000/corenlp", ("some@one", "a:b/,"))
    server = ExternalServer("https://[::1]:9000", {}, timeout=1)
    assert (server.url, server.credentials) == ("https://[::1]:9000", None)


@pytest.mark.parametrize("address", ["localhost:9000", "http://", "ftp://localhost:9000", "http://localhost:port"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UserError, match=f"--corenlp-url {address} is not an address such as http://localhost:9000"):
        make_extractor("corenlp-openie", "en", [address])
    with pytest.raises(UserError, match="--corenlp-url localhost:port is not an address such as http://localhost:9000"):
        make_extractor("corenlp-openie", "en", ["http://user:password@localhost:port"])


def test_a_closed_server_takes_no_requests() -> None:
    """The threads of an interrupted run would finish their shards, or wait until the user has restarted the server."""
    server = ExternalServer("http://localhost:1", SPLIT_ONLY, timeout=60)
    server.close()
    for request in (lambda: server.annotate(SENTENCE), server.restart):
        with pytest.raises(UserError, match="the extraction was stopped"):
            request()


def test_an_extractor_that_is_made_while_all_are_closed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: List[str] = []

    def build_slowly(*_: object) -> SimpleNamespace:
        build.close_extractors()
        return SimpleNamespace(close=lambda: closed.append("this one"))

    monkeypatch.setattr(build, "build_extractor", build_slowly)
    with pytest.raises(UserError, match="the extraction was stopped"):
        build.get_extractor(build.ExtractionOptions("stanza", "en", "subword_nmt"), build.ServerOptions())
    assert closed == ["this one"]


def test_its_files_are_private(corenlp_server: ManagedServer) -> None:
    """The shutdown key is not in a folder that others can read, and the password is not among the arguments."""
    folder = private_folder(corenlp_server)
    assert permissions(folder) == 0o700
    assert (folder / "corenlp.shutdown").exists()
    (properties,) = folder.glob("*.properties")
    assert permissions(properties) == 0o600
    assert corenlp_server.credentials is not None
    for secret in corenlp_server.credentials:
        assert secret in properties.read_text()
        assert all(secret not in argument for argument in command_line(corenlp_server))
    assert str(properties) in command_line(corenlp_server)


@pytest.mark.slow
def test_its_files_are_gone_after(corenlp_server: ManagedServer) -> None:
    """``corenlp_server`` says that CoreNLP is there, and that two servers at once have passwords of their own."""
    server = ManagedServer(NO_MODELS, timeout=60, memory="2G")
    try:
        server.start()
        folder = private_folder(server)
        assert folder != private_folder(corenlp_server)
        assert server.credentials != corenlp_server.credentials
        assert requests.post(server.url, data=SENTENCE, auth=corenlp_server.credentials).status_code == 401

        assert server._process is not None
        server._process.server.kill()
        server._process.server.wait()
        server.restart()
        assert server.annotate(SENTENCE).sentence
        folders = {folder, private_folder(server)}
        assert requests.post(server.url, data=SENTENCE).status_code == 401
    finally:
        server.close()
    assert not any(used.exists() for used in folders)
    assert urlsplit(server.url).hostname == "localhost"


@pytest.mark.slow
def test_it_outlives_the_thread_that_first_asks(corenlp_server: ManagedServer) -> None:
    """As a thread of a web server does, which may end with its request."""
    server = ManagedServer(NO_MODELS, timeout=60, memory="2G")
    try:
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join()
        time.sleep(1)
        assert not server._has_ended() and server.annotate(SENTENCE).sentence
    finally:
        server.close()


@pytest.mark.process
def test_no_file_is_left_when_it_does_not_start(
    corenlp_server: ManagedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError, match="the CoreNLP server does not start; the end of its log: .*heap"):
        make_extractor("corenlp-openie", "en", memory="1K")
    assert not list(tmp_path.iterdir())

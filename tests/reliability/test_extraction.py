"""``ctxgates relations`` beside parsers that fail, servers that are none, and shards that are damaged."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import pytest
from stanza.protobuf import Document, writeToDelimitedString

from fairseq_ctxgates.commands import relations
from fairseq_ctxgates.commands.relations import main
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction import corenlp_server, shards
from fairseq_ctxgates.relations.extraction.corenlp import CoreNLPExtractor
from fairseq_ctxgates.relations.extraction.corenlp_server import (
    CoreNLPServer,
    ExternalServer,
    ManagedServer,
    ServerLost,
)
from fairseq_ctxgates.relations.extraction.extractor import (
    FAILURES_IN_A_ROW,
    MAX_WORDS,
    NotParsed,
    RelationTuple,
)
from tests.helpers.corpus import binarize
from tests.helpers.extractors import StubExtractor, make_extractor

SENTENCES = [f"farmer {number} sells apples ." for number in range(60)]


@pytest.fixture
def parser(extractor: StubExtractor, monkeypatch: pytest.MonkeyPatch) -> StubExtractor:
    monkeypatch.setattr(StubExtractor, "sentences_at_once", 7)
    monkeypatch.setattr(shards, "SHARD_SENTENCES", 10)
    return extractor


def make_data(folder: Path, sentences: Sequence[str] = SENTENCES) -> Path:
    return binarize(folder, {"train": [(sentence, "t") for sentence in sentences]}, "en", "de")


def run(data: Path, *options: Any) -> None:
    main([str(data), "-s", "en", "-t", "de", *map(str, options)])


def streams(data: Path) -> Dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.glob("train.relation.*")}


def shards_of(data: Path) -> List[Path]:
    return sorted(data.glob(f".relation.*/{'[0-9]' * 10}"))


def stopped_before_writing(data: Path, *options: Any) -> None:
    """Run the command until all shards are there."""

    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(relations, "write_streams", stopped)
        run(data, *options)


# --- a parser that fails


@pytest.mark.parametrize("workers", [1, 3])
def test_a_parser_that_has_fallen_ill_is_no_parser_of_empty_sentences(
    tmp_path: Path, parser: StubExtractor, workers: int
) -> None:
    data = make_data(tmp_path / "data")
    parser.fails = lambda text: len(parser.parsed) >= 30
    message = r"no longer works: it failed on (\d+) sentences in a row \(HTTP 500\).*same command again"
    with pytest.raises(UserError, match=message) as raised:
        run(data, "--workers", workers, "--max-failed", 1)
    # Other workers may fail on a sentence each while one finds out.
    counted = int(re.findall(message, str(raised.value))[0])
    assert FAILURES_IN_A_ROW <= counted < FAILURES_IN_A_ROW + workers
    assert streams(data) == {}
    kept = [line for shard in shards_of(data) for line in shard.read_bytes().splitlines()[:-1]]
    finished = sum(line != b"null" for line in kept)
    if workers == 1:
        assert finished == len(kept) > 0

    parser.fails, known = (lambda text: False), len(parser.parsed)
    run(data)
    assert len(parser.parsed) - known == len(SENTENCES) - finished  # those of finished shards are not parsed again
    assert not shards_of(data)
    whole = make_data(tmp_path / "whole")
    run(whole)
    assert streams(data) == streams(whole)


def test_sentences_that_are_to_blame_do_not_make_the_parser_ill(tmp_path: Path, parser: StubExtractor) -> None:
    """However many come one after another: otherwise a rerun, which has only those to parse, would always stop."""
    data = make_data(tmp_path / "data")
    parser.fails = lambda text: text in SENTENCES[20:45]
    for _ in range(2):
        with pytest.raises(UserError, match="the parser failed on .* of 60 sentences"):
            run(data)
    run(data, "--max-failed", 0.5)
    assert len(streams(data)) == 3


def test_too_many_failures(tmp_path: Path, parser: StubExtractor, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written and nothing lost; a rerun tries those that failed and nothing else."""
    data = make_data(tmp_path / "data")
    bad = SENTENCES[3::5]
    parser.fails = lambda text: text in bad
    message = (
        r"^the parser failed on 12 of 60 sentences, which is more than --max-failed allows \("
        rf"{data}/train, row 4: 'farmer 3 sells apples \.'; {data}/train, row 9: .*; .*\): look at the parser.*"
        rf"(?=.*same command again)(?=.*in {data}/\.relation\.).*larger --max-failed$"
    )
    with pytest.raises(UserError, match=message):
        run(data)
    assert streams(data) == {}
    assert len(parser.parsed) == 48

    with pytest.raises(UserError, match="the parser failed on 12 of 60"):
        run(data)
    assert len(parser.parsed) == 48 + 2  # the checks, by what was parsed before
    parser.fails = lambda text: text in bad[2:]
    capsys.readouterr()
    run(data, "--max-failed", 0.2)
    assert sorted({*parser.parsed}) == sorted({*SENTENCES} - {*bad[2:]})
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "train.relation" in line]
    assert line.split()[-1] == "10"


@pytest.mark.parametrize(
    ("sentences", "failing", "share", "is_enough"),
    [
        (60, 10, 0.01, False),  # always allowed
        (60, 11, 0.01, True),
        (60, 12, 0.2, False),
        (60, 13, 0.2, True),
        (100, 29, 0.29, False),  # their product is 28.999999999999996
        (100, 30, 0.29, True),
        (60, 1, 0, True),
        (4, 2, 0.01, False),
        (4, 3, 0.01, True),
        (1, 1, 0.01, True),
        (1, 1, 1, False),
    ],
)
def test_the_share_of_failures(sentences: int, failing: int, share: float, is_enough: bool) -> None:
    assert (failing > shards.allowed_failures(share, sentences)) == is_enough


@pytest.mark.parametrize("share", ["-0.1", "1.1", "nan", "few"])
def test_a_share_that_is_none(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "--max-failed", share])
    assert f"--max-failed: '{share}' is not a number from 0 to 1" in capsys.readouterr().err


def test_a_sentence_that_is_too_long_is_left_out_and_counted(
    tmp_path: Path, parser: StubExtractor, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path / "data", ["a b", "c " * (MAX_WORDS + 1), "c " * MAX_WORDS])
    run(data, "--max-failed", 0)
    assert max(len(text.split()) for text in parser.parsed) == MAX_WORDS
    printed = capsys.readouterr().out
    assert f"of these, with more than {MAX_WORDS:,} words and never sent to the parser: 1\n" in printed


# --- shards that are damaged


def damages(content: bytes) -> Dict[str, bytes]:
    flipped = [bytearray(content) for _ in range(0, len(content), 11)]
    for number, place in enumerate(range(0, len(content), 11)):
        flipped[number][place] ^= 1 << number % 8
    return {
        "empty": b"",
        "zeroed": bytes(len(content)),
        "without its end": content[:-1],
        "cut": content[: len(content) // 2],
        "cut to a line": content[: content.index(b"\n") + 1],
        "longer": content + b"[]\n",
        **{f"flipped {number}": bytes(changed) for number, changed in enumerate(flipped)},
    }


def test_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0000000250"
    shards.write_shard(path, [[RelationTuple([0], [1], [2, 3])], None, []])
    content = path.read_bytes()
    assert shards.read_shard(path) == [b"[[[0],[1],[2,3]]]", b"null", b"[]"]
    for damage, damaged in damages(content).items():
        path.write_bytes(damaged)
        assert shards.read_shard(path) is None, damage
    other = path.with_name("0000000000")
    other.write_bytes(content)
    assert shards.read_shard(other) is None, "of other sentences"


def test_a_damaged_shard_is_made_again(
    tmp_path: Path, parser: StubExtractor, capsys: pytest.CaptureFixture[str]
) -> None:
    data, whole = make_data(tmp_path / "data"), make_data(tmp_path / "whole")
    run(whole)
    stopped_before_writing(data)
    second, fifth = shards_of(data)[1], shards_of(data)[4]
    second.write_bytes(b"")
    fifth.write_bytes(bytes(fifth.stat().st_size))
    parser.parsed.clear()
    capsys.readouterr()
    run(data)
    assert parser.parsed == SENTENCES[10:20] + SENTENCES[40:50]
    assert streams(data) == streams(whole)
    printed = capsys.readouterr().err
    assert all(f"{path} is damaged and made again" in printed for path in (second, fifth))


def test_a_shard_that_is_damaged_before_it_is_written(
    tmp_path: Path, parser: StubExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, write_streams = make_data(tmp_path / "data"), relations.write_streams

    def damaged(*arguments: Any) -> Any:
        shards_of(data)[1].write_bytes(b"")
        return write_streams(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(relations, "write_streams", damaged)
        with pytest.raises(UserError, match=r"\.relation\.en-de\.\w+/0000000010 was damaged: run the same command"):
            run(data)
    assert streams(data) == {}
    run(data)
    assert len(streams(data)) == 3


# --- servers


def document(text: str) -> bytes:
    """CoreNLP's answer, with all words as full stops, which English models tag so."""
    answer = Document(text=text)
    for line in text.split("\n"):
        sentence = answer.sentence.add(tokenOffsetBegin=0, tokenOffsetEnd=len(line.split()))
        for word in line.split():
            sentence.token.add(word=word, pos=".")
    return writeToDelimitedString(answer).getvalue()


Answer = Callable[[str], Tuple[int, bytes]]  # to a text that is posted: the HTTP status and the content


@contextmanager
def serving(answer: Answer, ping: int = 200) -> Iterator[Tuple[str, List[str]]]:
    """The address of a server on this machine, and the first lines of the requests that it gets."""
    requests: List[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.requestline)
            self.respond(ping, b"pong\n")

        def do_POST(self) -> None:
            requests.append(self.requestline)
            self.respond(*answer(self.rfile.read(int(self.headers["Content-Length"])).decode()))

        def respond(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False  # some answers never come
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


def healthy(text: str) -> Tuple[int, bytes]:
    return 200, document(text)


def never(text: str) -> Tuple[int, bytes]:
    time.sleep(30)
    return 200, b""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corenlp_server, "CONNECTION_SECONDS", 0)
    monkeypatch.setattr(corenlp_server, "TRIAL_SECONDS", 1)
    monkeypatch.setattr(corenlp_server, "GRACE_SECONDS", 0)


class SometimesFailing(CoreNLPServer):
    """Fails on texts that begin with its name."""

    def __init__(self, url: str) -> None:
        super().__init__(url, None, {}, 1)
        self.restarts = 0

    def start(self) -> None: ...

    def restart(self) -> None:
        self.restarts += 1

    def annotate(self, text: str) -> Any:
        if text.startswith(self.url):
            raise NotParsed("HTTP 500")
        return SimpleNamespace(sentence=[])

    def _remedy(self) -> str:
        return ""


def test_a_server_is_given_up_for_failures_in_a_row_alone() -> None:
    servers = [SometimesFailing("first"), SometimesFailing("second")]
    extractor = CoreNLPExtractor("corenlp-dependencies", servers)
    for _ in range(2 * FAILURES_IN_A_ROW):
        for text in ("first", "fine"):
            assert extractor.parse([[text]]) == []
    assert extractor._servers == servers
    for _ in range(FAILURES_IN_A_ROW):
        assert extractor.parse([["first"]]) == []
    assert extractor._servers == servers[1:]


def test_a_server_that_was_given_up_is_not_restarted() -> None:
    """Two of its requests may be lost at the same time."""
    lost, other = servers = [SometimesFailing("first"), SometimesFailing("second")]
    extractor = CoreNLPExtractor("corenlp-dependencies", servers)
    for _ in range(2):
        extractor._handle_lost_server(lost, ServerLost("no answer"))
    assert (extractor._servers, lost.restarts, other.restarts) == ([other], 0, 0)


@pytest.mark.process
def test_a_stub_that_answers_as_corenlp_does() -> None:
    """Without this the other tests show little."""
    with serving(healthy) as (url, _), make_extractor("corenlp-dependencies", "en", [url]) as extractor:
        assert extractor.extract([["a", "b"], ["c"]]) == [[], []]


@pytest.mark.process
@pytest.mark.parametrize(
    ("status", "content"),
    [
        (501, b"Unsupported method"),
        (404, b"<html>Not found</html>"),
        (200, b"<html>" + b"Welcome " * 1000 + b"</html>"),
        (200, b'{"status": "ok"}'),
        (200, b"\xff" * 100),
        (200, b"null"),
        (200, b"\0"),
        (200, b""),
    ],
    ids=["not implemented", "not found", "a long page", "status", "no text", "null", "a byte", "nothing"],
)
def test_a_web_server_is_told_from_corenlp_without_models(status: int, content: bytes) -> None:
    message = (
        r"^what listens at http://127.0.0.1:\d+ (is not a CoreNLP server|cannot be used as a CoreNLP server, .*): "
        r".{10,200}; start one there, give the address of one that works, or none, .*continues where it stopped\)$"
    )
    with serving(lambda text: (status, content)) as (url, _), pytest.raises(UserError, match=message) as refusal:
        make_extractor("corenlp-dependencies", "en", [url])
    assert status == 200 or f"HTTP {status}: " in str(refusal.value)


@pytest.mark.process
def test_a_web_server_that_has_no_ping(impatient: None) -> None:
    with serving(healthy, ping=404) as (url, _):
        with pytest.raises(UserError, match=rf"no CoreNLP server answers at {url} \(/ping: HTTP 404\); start one"):
            make_extractor("corenlp-dependencies", "en", [url])


@pytest.mark.process
def test_a_server_that_answers_pings_and_nothing_else(impatient: None) -> None:
    with serving(never) as (url, _):
        with pytest.raises(UserError, match=f"{url} cannot be used as .*: it gave no answer in 1 seconds; start one"):
            make_extractor("corenlp-dependencies", "en", [url])


@pytest.mark.process
def test_a_server_that_hangs_for_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not five minutes for it."""
    monkeypatch.setattr(corenlp_server, "GRACE_SECONDS", 0)
    data = make_data(tmp_path / "data")
    with serving(lambda text: never(text) if "farmer 5 " in text else healthy(text)) as (url, _):
        run(data, "--extractor", "corenlp-dependencies", "--corenlp-url", url, "--timeout", 2)
    assert len(streams(data)) == 3  # without this sentence alone


@pytest.mark.process
def test_a_server_that_hangs_from_the_middle_on(tmp_path: Path, impatient: None) -> None:
    """Not five minutes for each sentence."""
    hangs = threading.Event()

    def hanging(text: str) -> Tuple[int, bytes]:
        if "farmer" in text:
            hangs.set()
        return never(text) if hangs.is_set() else healthy(text)

    data = make_data(tmp_path / "data")
    with serving(hanging) as (url, requests):
        with pytest.raises(UserError, match=f"{url} cannot be used as .*: it gave no answer in 1 seconds; start one"):
            run(data, "--extractor", "corenlp-dependencies", "--corenlp-url", url, "--timeout", 1)
    assert len(requests) < 10


@pytest.mark.process
def test_a_server_that_has_fallen_ill_beside_a_healthy_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fails fast, so that it is the least busy one; no sentence is lost by it, and it is soon asked no more."""
    data, whole = make_data(tmp_path / "data"), make_data(tmp_path / "whole")

    def slowly(text: str) -> Tuple[int, bytes]:
        time.sleep(0.02)
        return healthy(text)

    def ill(text: str) -> Tuple[int, bytes]:
        return (500, b"") if "farmer" in text else healthy(text)

    with serving(slowly) as (good, _), serving(ill) as (bad, requests):
        options = ["--extractor", "corenlp-dependencies", "--workers", 3]
        run(whole, *options, "--corenlp-url", good)
        run(data, *options, "--corenlp-url", bad, "--corenlp-url", good, "--max-failed", 0)
    assert streams(data) == streams(whole)
    assert f"{bad} is lost (it failed on {FAILURES_IN_A_ROW} sentences that another server parsed)" in caplog.text
    assert len(requests) < 30


@pytest.mark.process
def test_a_server_that_dies_with_two_requests_beside_a_healthy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one that is left is not the dead one."""
    monkeypatch.setattr(ExternalServer, "restart", lambda server: pytest.fail(f"{server.url} is waited for"))
    bad_one_has_two = threading.Event()  # of the first four requests
    both_are_there = threading.Barrier(2, bad_one_has_two.set)

    with serving(healthy) as (good, _), serving(healthy) as (bad, _):
        annotate = ExternalServer.annotate

        def die(server: ExternalServer, text: str) -> Document:
            if server.url != bad:
                assert bad_one_has_two.wait(timeout=60)
                return annotate(server, text)
            both_are_there.wait(timeout=60)
            raise ServerLost("ConnectionError")

        monkeypatch.setattr(ExternalServer, "annotate", die)
        extractor = make_extractor("corenlp-dependencies", "en", [bad, good])
        with extractor, ThreadPoolExecutor(4) as executor:
            assert list(executor.map(extractor.extract, [[["a", "b"]]] * 4)) == [[[]]] * 4


@pytest.mark.process
def test_a_sentence_that_both_servers_fail_on_makes_neither_ill(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data")
    bad = SENTENCES[20:45]

    def answer(text: str) -> Tuple[int, bytes]:
        return (500, b"") if any(sentence in text for sentence in bad) else healthy(text)

    with serving(answer) as (one, asked), serving(answer) as (other, asked_too):
        urls = ["--corenlp-url", one, "--corenlp-url", other]
        run(data, "--extractor", "corenlp-dependencies", *urls, "--max-failed", 0.5)
    assert len(streams(data)) == 3
    assert min(len(asked), len(asked_too)) > len(bad)


@pytest.mark.process
def test_a_proxy_is_asked_for_other_machines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(healthy) as (proxy, asked):
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        with serving(healthy) as (url, requests):
            for address in (url, url.replace("127.0.0.1", "localhost")):
                with make_extractor("corenlp-dependencies", "en", [address]) as extractor:
                    assert extractor.extract([["a", "b"]]) == [[]]
            assert len(requests) == 2 * 4
        assert asked == []
        with make_extractor("corenlp-dependencies", "en", ["http://corenlp.example:9000"]) as extractor:
            assert extractor.extract([["a", "b"]]) == [[]]
        assert len(asked) == 4
        assert all(re.match("(GET|POST) http://corenlp.example:9000/", request) for request in asked)


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("http://localhost:9000", True),
        ("http://127.0.1.1:9000", True),
        ("https://[::1]:9000", True),
        ("http://10.0.0.1:9000", False),
        ("http://localhost.example:9000", False),
    ],
)
def test_which_addresses_are_on_this_machine(url: str, is_here: bool) -> None:
    server = ExternalServer(url, {}, timeout=1)
    assert server._proxies == ({"http": "", "https": ""} if is_here else None)


@pytest.mark.slow
def test_a_server_with_too_little_memory_says_so(corenlp_server: ManagedServer) -> None:
    """And does not try for minutes. ``corenlp_server`` says that CoreNLP is there."""
    with pytest.raises(UserError, match=r"give it more than 200M \(ctxgates relations --corenlp-memory, or a server"):
        make_extractor("corenlp-dependencies", "en", memory="200M")

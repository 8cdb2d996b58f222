"""Extraction by the real Stanford CoreNLP. Skipped where it is not there, see ``conftest.py``."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Container, Dict, Iterator, List, Sequence

import pytest
import requests
from stanza.protobuf import Document

import ctxgates
from fairseq_ctxgates.commands import relations as command
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.processes import ending_with_parent
from fairseq_ctxgates.relations.extraction import corenlp_server, shards
from fairseq_ctxgates.relations.extraction.corenlp import CoreNLPExtractor
from fairseq_ctxgates.relations.extraction.corenlp_server import ExternalServer
from fairseq_ctxgates.relations.extraction.extractor import RelationExtractor, relations_of_tokens
from tests.helpers.corpus import binarize
from tests.helpers.extractors import make_extractor

# Sentences and the tuples that OpenIE finds, each read word by word, "subject | relation | object".
ENGLISH: Dict[str, List[str]] = {
    "Marie Curie discovered radium in Paris .": [
        "Marie Curie | discovered | radium",
        "Marie Curie | discovered radium in | Paris",
    ],
    "The old farmer sells fresh apples .": [
        "old farmer | sells | fresh apples",
        "old farmer | sells | apples",
        "farmer | sells | fresh apples",
        "farmer | sells | apples",
    ],
    "A dog chases the cat and catches a mouse .": ["dog | chases | cat", "dog | catches | mouse"],
    "Obama was born in Hawaii .": ["Obama | was | born", "Obama | was born in | Hawaii"],
    "The girl who wears a red hat gave her brother a book .": ["girl | gave | book"],
    "Cats are animals .": ["Cats | are | animals"],
    "The president of France visited Berlin on Monday .": [
        "president | visited | Berlin",
        "president | visited Berlin on | Monday",
        "Berlin | president of | France",  # not what is said, but what OpenIE says
    ],
    "Peter wants to buy a house .": ["Peter | buy | house"],
    # The words of the relation are no neighbours: "a" and "the" stand between them.
    "The teacher reads a story to the children .": [
        "teacher | reads | story",
        "teacher | reads story to | children",
    ],
    # The words of the object are no neighbours: a comma stands between them.
    "John ate a large , red apple .": [
        "John | ate | large red apple",
        "John | ate | large apple",
        "John | ate | red apple",
        "John | ate | apple",
    ],
    "She did not open the door .": [],
}
GERMAN = {
    "Der Mann fängt den Ball auf und lacht .": ["Der Mann | fängt auf | den Ball", "Der Mann | lacht | "],
    "Sie hat das Buch nicht gelesen .": ["Sie | hat gelesen | das Buch"],
}
SHORT = "The old farmer sells fresh apples ."
KILLED_AFTER_TWO_SHARDS = """
import os, signal
from fairseq_ctxgates.commands.relations import main
from fairseq_ctxgates.relations.extraction import shards

def write_and_end(path, tuples, write=shards.write_shard):
    write(path, tuples)
    written.append(path)
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

written = []
shards.SHARD_SENTENCES = 50
shards.write_shard = write_and_end
main()
"""
SHARDS = f".relation.*/{'[0-9]' * 10}"  # those that are done
# Takes CoreNLP's OpenIE far longer than any time-out here.
ENDLESS = " ".join(["the man eats the apple and"] * 150 + ["sleeps ."])


def tuples_in_words(extractor: RelationExtractor, sentences: Sequence[str]) -> List[List[str]]:
    split = [sentence.split() for sentence in sentences]
    found = extractor.extract_tuples(split)
    assert all(tuples is not None for tuples in found)
    return [
        [" | ".join(" ".join(words[word] for word in part) for part in entry) for entry in tuples or []]
        for words, tuples in zip(split, found)
    ]


def test_tuples_of_english_sentences_word_by_word(corenlp_url: str) -> None:
    with make_extractor("corenlp-openie", "en", [corenlp_url]) as extractor:
        assert dict(zip(ENGLISH, tuples_in_words(extractor, list(ENGLISH)))) == ENGLISH
        assert extractor.extract(["John ate a large , red apple .".split()]) == [
            [[0, 1, 3, 5, 6], [0, 1, 3, 6], [0, 1, 5, 6], [0, 1, 6]]  # neither "a" nor the comma
        ]


def test_tuples_of_german_sentences_from_dependencies(corenlp_url: str) -> None:
    with make_extractor("corenlp-dependencies", "de", [corenlp_url]) as extractor:
        assert dict(zip(GERMAN, tuples_in_words(extractor, list(GERMAN)))) == GERMAN


def test_tuples_of_subwords_and_escapes(corenlp_url: str) -> None:
    """The dog's owner, as Moses and subword-nmt leave him."""
    row = "the d@@ og &apos;s ow@@ ner buys f@@ resh &quot; app@@ les &quot; .".split()
    with make_extractor("corenlp-openie", "en", [corenlp_url]) as extractor:
        (groups,) = relations_of_tokens(extractor, [row], "subword_nmt")
        (words,) = extractor.extract(['the dog \'s owner buys fresh " apples " .'.split()])
    assert words and [1, 2, 3, 4, 7] in words  # dog 's owner buys apples
    positions = [[0], [1, 2], [3], [4, 5], [6], [7, 8], [9], [10, 11], [12], [13]]
    assert groups == [[place for word in group for place in positions[word]] for group in words]


def test_odd_sentences_move_nothing_to_another_row(corenlp_url: str) -> None:
    long = ["The", "old", "farmer", *["very"] * 190, "often", "sells", "fresh", "apples", "at", "markets", "."]
    assert len(long) == 200
    odd = [
        [],
        long,
        "He said : \" The old ( and wise ) farmer [ sells ] { apples } \" ; -LRB- `` ok '' -RRB- .".split(),
        ["The", "\U0001f600", "farmer", "sells", "apples", "\U0001f468\u200d\U0001f33e", "."],
        ["The", "farmer\u2028sells", "apples", "."],  # a line separator, which CoreNLP ends a sentence at
        ["The", "far\u00a0mer", "sells", "apples\u0085", "."],
        ["%20", "+", "&amp;", "\\", "{'a':1}", "#", "?", "=", "\u200b", "\ufeff"],
        ["x" * 5000],
    ]
    usual = [list(sentence.split()) for sentence in list(ENGLISH)[: len(odd)]]
    mixed = [words for pair in zip(odd, usual) for words in pair]
    with make_extractor("corenlp-openie", "en", [corenlp_url]) as extractor:
        found = extractor.extract(mixed)
        assert found[1::2] == extractor.extract(usual)
    of_odd = found[::2]
    assert of_odd[0] == []
    assert of_odd[4] is None
    assert of_odd[5] is None
    for words, groups in zip(odd, of_odd):
        assert groups is None or all(0 <= word < len(words) for group in groups for word in group)


def test_a_word_that_comes_back_changed_has_no_position(corenlp_url: str) -> None:
    """With a tokenizer of its own the server makes two words of "$5", and all after it would shift."""
    sentences = [SHORT.split(), "The old farmer sells $5 apples .".split(), "Cats are animals .".split()]
    with make_extractor("corenlp-openie", "en", [corenlp_url]) as extractor:
        expected = extractor.extract(sentences)
    assert all(expected)
    properties = [("tokenize.whitespace", "false")]
    with make_extractor("corenlp-openie", "en", [corenlp_url], properties=properties) as extractor:
        assert extractor.extract(sentences) == [expected[0], None, expected[2]]


def test_a_sentence_that_takes_too_long_is_given_up(corenlp_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is asked for it once with the others, and once alone."""
    asked: List[str] = []
    annotate = ExternalServer.annotate

    def count(server: ExternalServer, text: str) -> Document:
        asked.append(text)
        return annotate(server, text)

    monkeypatch.setattr(ExternalServer, "annotate", count)
    with make_extractor("corenlp-openie", "en", [corenlp_url], timeout=6) as extractor:
        first, endless, last = extractor.extract([SHORT.split(), ENDLESS.split(), "Cats are animals .".split()])
    assert sum("sleeps" in text for text in asked) == 2
    assert first is not None
    assert (len(first), endless, last) == (4, None, [[0, 1, 2]])


def test_a_language_that_the_server_has_no_models_for(corenlp_url: str) -> None:
    """It would take the English ones and say nothing."""
    with pytest.raises(UserError, match=r"has no models for italian: add their jar, .*models-italian.jar"):
        make_extractor("corenlp-dependencies", "it", [corenlp_url])


@pytest.mark.slow
def test_a_server_killed_in_the_middle_is_started_again(corenlp_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``corenlp_url`` says that CoreNLP is there, and what is expected."""
    monkeypatch.setattr(RelationExtractor, "sentences_at_once", 5)
    sentences = [f"The farmer sells {number} apples .".split() for number in range(12)]
    with make_extractor("corenlp-dependencies", "en", [corenlp_url]) as extractor:
        expected = extractor.extract(sentences)
    assert all(expected)
    with make_extractor("corenlp-dependencies", "en", memory="2G") as extractor:
        assert isinstance(extractor, CoreNLPExtractor)
        (server,) = extractor._servers
        assert isinstance(server, corenlp_server.ManagedServer)
        annotate = server.annotate
        requests: List[str] = []

        def killed_at_the_second(text: str) -> object:
            requests.append(text)
            if len(requests) == 2:
                java_of(server).kill()
            return annotate(text)

        monkeypatch.setattr(server, "annotate", killed_at_the_second)
        first = java_of(server).pid
        assert extractor.extract(sentences) == expected
        second = java_of(server)
        assert second.pid != first
    assert second.poll() is not None  # ended with the block


def java_of(server: corenlp_server.ManagedServer) -> subprocess.Popen:
    """The process of a server that was started."""
    assert server._process is not None
    return server._process.server


@contextmanager
def passing_on(url: str, dropped: Container[int]) -> Iterator[str]:
    """The address of a server that passes requests on to another, but hangs up on some, by their number from 0. The
    first two are those of the check at the start."""
    numbers = itertools.count()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(requests.get(url + self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if next(numbers) in dropped:
                self.close_connection = True
            else:
                self.answer(requests.post(url + self.path, data=body))

        def answer(self, response: requests.Response) -> None:
            self.send_response(response.status_code)
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("localhost", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_lost_server_that_comes_back_and_one_that_others_stand_in_for(
    corenlp_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RelationExtractor, "sentences_at_once", 5)
    sentences = [f"The farmer sells {number} apples .".split() for number in range(12)]
    with make_extractor("corenlp-dependencies", "en", [corenlp_url]) as extractor:
        expected = extractor.extract(sentences)
    assert all(expected)
    with passing_on(corenlp_url, {2}) as url, make_extractor("corenlp-dependencies", "en", [url]) as extractor:
        assert extractor.extract(sentences) == expected
    assert "is lost" not in caplog.text
    with passing_on(corenlp_url, range(2, 999)) as url:
        with make_extractor("corenlp-dependencies", "en", [url, corenlp_url]) as extractor:
            assert extractor.extract(sentences) == expected
    assert f"the CoreNLP server at {url} is lost" in caplog.text


def test_an_address_where_no_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corenlp_server, "CONNECTION_SECONDS", 0)
    with pytest.raises(
        UserError, match=r"no CoreNLP server answers at http://localhost:1 \(/ping: ConnectionError\); start one"
    ):
        make_extractor("corenlp-openie", "en", ["http://localhost:1/"])


@pytest.mark.process
def test_a_server_that_is_none_of_corenlps(tmp_path: Path) -> None:
    (tmp_path / "ping").write_text("pong")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UserError, match=r"at http://localhost:\d+ cannot be used as a CoreNLP server, .*501"):
            make_extractor("corenlp-openie", "en", [f"http://localhost:{server.server_port}"])
        server.shutdown()


def test_a_server_that_does_not_start(corenlp_url: str) -> None:
    with pytest.raises(UserError, match="the CoreNLP server does not start; the end of its log: .*heap"):
        make_extractor("corenlp-openie", "en", memory="1K")


def test_a_server_that_loses_its_port_before_it_opens_it_takes_another(
    corenlp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends, and its log says nothing."""
    first = iter([["true"]])
    monkeypatch.setattr(
        corenlp_server, "ending_with_parent", lambda started: next(first, None) or ending_with_parent(started)
    )
    with make_extractor("corenlp-dependencies", "en") as extractor:
        assert extractor.extract([SHORT.split()]) != [None]
    assert next(first, None) is None


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_stopped(
    corenlp_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte for byte the streams of a run that was not."""
    monkeypatch.setattr(shards, "SHARD_SENTENCES", 50)
    pairs = [(f"The {name} farmer sells {number} apples .", "t") for number in range(120) for name in ("old", "new")]
    data, whole = (binarize(tmp_path / name, {"train": pairs[:220], "valid": pairs[200:]}, "en", "de") for name in "ab")
    options = ["-s", "en", "-t", "de", "--extractor", "corenlp-dependencies", "--corenlp-url", corenlp_url]
    command.main([str(whole), *options])

    root = Path(ctxgates.__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    started = [sys.executable, "-c", KILLED_AFTER_TWO_SHARDS, str(data), *options]
    killed = subprocess.run(started, env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = list(data.glob(SHARDS))
    assert 0 < len(done) < 5
    assert not list(data.glob("train.relation.*"))

    capsys.readouterr()
    command.main([str(data), *options])
    assert not list(data.glob(".relation.*"))
    assert f"| {50 * len(done)}/" in capsys.readouterr().err  # where the progress bar begins
    for split in ("train", "valid"):
        for extension in ("bin", "idx", "json"):
            name = f"{split}.relation.en-de.{extension}"
            assert (data / name).read_bytes() == (whole / name).read_bytes()

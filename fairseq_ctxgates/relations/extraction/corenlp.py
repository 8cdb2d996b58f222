"""Relation tuples from Stanford CoreNLP servers, through ``stanza.server.CoreNLPClient``."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import requests
from google.protobuf.message import DecodeError
from stanza.server import CoreNLPClient, StartServer
from stanza.server.client import (
    LANGUAGE_SHORTHANDS_TO_FULL,
    AnnotationException,
    PermanentlyFailedException,
    TimeoutException,
    resolve_classpath,
)

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.dependencies import tuples_of_tree
from fairseq_ctxgates.relations.extraction.extractor import NotParsed, RelationExtractor, RelationTuple

logger = logging.getLogger(__name__)

ANNOTATORS = {
    "corenlp-openie": "tokenize,ssplit,pos,lemma,depparse,natlog,openie",
    "corenlp-dependencies": "tokenize,ssplit,pos,depparse",
}
PROPERTIES = {  # the words are those of the data: no tokenizing, a line is a sentence
    "tokenize.whitespace": "true",
    "ssplit.eolonly": "true",
    "openie.triple.strict": "true",
}
# OpenIE goes through sets in the order of their elements' identity hashes, which Java draws anew at every start: of 400
# sentences of Multi30k it found 1,473 or 1,624 tuples. With equal hashes the order is that of insertion, and each start
# finds the same.
JAVA_OPTIONS = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
CONNECTION_SECONDS = 10  # until a server answers that is said to run
START_SECONDS = 300  # until one does that is started, or was lost, and until it has loaded its models
LOST_IN_A_ROW = 10  # servers that died without having answered once: then it is no single sentence's fault
ATTEMPTS = 3  # to send a sentence alone: the server may have died of another one
TRIAL = "This is a test ."

INSTALLING = (
    "run `make corenlp` in a clone of this project, or python -c 'import stanza; stanza.install_corenlp()', and set "
    "CORENLP_HOME where it lies elsewhere than in ~/stanza_corenlp"
)


class ServerLost(Exception):
    """The server cannot be reached (any more)."""


class Server:
    """A CoreNLP server that runs at an address.

    Args:
        url: its address
        request: annotators and properties of each request
        timeout: seconds for a request
    """

    def __init__(self, url: str, request: Mapping[str, str], timeout: float) -> None:
        self.url = url
        self.request = dict(request)
        self.milliseconds = max(1, int(1000 * timeout))
        self.in_flight = 0

    def annotate(self, text: str, timeout: Optional[int] = None) -> Any:
        """CoreNLP's protobuf document of a text.

        Args:
            timeout: milliseconds, if others than those of all requests

        Raises:
            NotParsed: the server answered with an error, or took too long
            ServerLost: it did not answer
        """
        # The server's own defaults are not asked for, so that every server gives the same.
        timeout = timeout or self.milliseconds
        properties = {**self.request, "timeout": str(timeout)}
        client = CoreNLPClient(
            start_server=StartServer.DONT_START, endpoint=self.url, timeout=timeout, output_format="serialized"
        )
        try:
            return client.annotate(text, properties=properties, reset_default=True)
        except TimeoutException as error:
            raise NotParsed(str(error)) from error
        except AnnotationException as error:
            if isinstance(error.__cause__, requests.exceptions.HTTPError):
                raise NotParsed(" ".join(str(error).split())[:500]) from error
            raise ServerLost(str(error)) from error
        except DecodeError as error:
            raise ServerLost(f"its answer is not one of CoreNLP ({error})") from error

    def check(self) -> None:
        """Have the models loaded, and see whether they are there.

        Raises:
            UserError: the server is none of CoreNLP's, or cannot annotate as it is asked to
        """
        try:
            document = self.annotate(TRIAL, 1000 * START_SECONDS)
        except (NotParsed, ServerLost) as error:
            raise UserError(f"the CoreNLP server at {self.url} cannot be used: {error}") from error
        tags = [token.pos for sentence in document.sentence for token in sentence.token]
        language = self.request["pipelineLanguage"]
        # A server without a language's models silently takes the English ones, alone in having "." for a full stop.
        if not tags or (language != "english" and tags[-1] == "."):
            raise UserError(
                f"the CoreNLP server at {self.url} has no models for {language}: add their jar, "
                f"stanford-corenlp-VERSION-models-{language}.jar, to the folder of CoreNLP"
            )

    def start(self) -> None:
        """Check that the server is there and can be used; UserError where it is not."""
        self._wait_until_alive(CONNECTION_SECONDS)
        self.check()

    def restart(self) -> None:
        """Wait for someone to start the server again; UserError where nobody does."""
        self._wait_until_alive(START_SECONDS)
        self.check()

    def _wait_until_alive(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.is_alive():
            if time.monotonic() > end:
                raise UserError(
                    f"no CoreNLP server answers at {self.url}; start it, or leave out its address: what is done is "
                    f"kept, and the same command goes on from there"
                )
            time.sleep(1)

    def is_alive(self) -> bool:
        """Whether it answers at all."""
        with suppress(requests.exceptions.RequestException):
            return requests.get(f"{self.url}/ping", timeout=10).ok
        return False

    def close(self) -> None:
        """Nothing: the server is someone else's."""


class OwnServer(Server):
    """A CoreNLP server that is started here, and started again when it dies.

    Args:
        memory: of the Java machine, as ``4G``
    """

    def __init__(self, request: Mapping[str, str], timeout: float, memory: str) -> None:
        super().__init__("", request, timeout)
        self.memory = memory
        self._process: Optional[CoreNLPClient] = None
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        self._lock = threading.Lock()
        self._is_closed = False
        self._lost = 0

    def annotate(self, text: str, timeout: Optional[int] = None) -> Any:
        document = super().annotate(text, timeout)
        self._lost = 0
        return document

    def start(self) -> None:
        """Start the server, have it load its models, and check it.

        Raises:
            UserError: Java or CoreNLP is not there, or the server does not start
        """
        check_installation()
        for is_last in (False, False, True):
            with closing(socket.socket()) as probe:
                probe.bind(("localhost", 0))
                self.url = f"http://localhost:{probe.getsockname()[1]}"
            process = CoreNLPClient(
                start_server=StartServer.FORCE_START,
                endpoint=self.url,
                timeout=max(self.milliseconds, 1000 * START_SECONDS),  # at most: requests have their own
                threads=os.cpu_count(),  # at most: it works on as many requests as are made at a time
                memory=self.memory,
                properties="english",  # any name of a language: without one the client writes a file
                preload=False,  # the check does it, with the properties of the requests
                be_quiet=True,  # or the server prints every sentence
                stdout=self._log,
                stderr=self._log,
            )
            process.be_quiet = False  # but its last words are wanted
            process.start_cmd[1:1] = JAVA_OPTIONS
            try:
                process.start()
                break
            except PermanentlyFailedException:  # someone else took the port meanwhile
                if is_last:
                    raise
        self._process = process
        self._wait()
        self.check()

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while not self.is_alive():
            if self._has_ended() or time.monotonic() > end:
                raise UserError(f"the CoreNLP server does not start: {self._last_words()}")
            time.sleep(0.2)

    def _has_ended(self) -> bool:
        return self._process is None or self._process.server is None or self._process.server.poll() is not None

    def _last_words(self) -> str:
        self._log.flush()
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - 1000))
        return " ".join(self._log.read().split()) or "it said nothing"

    def restart(self) -> None:
        """Start the server again, unless another thread has done so already.

        Raises:
            UserError: it dies again and again
        """
        with self._lock:
            if self._is_closed:
                raise UserError("the CoreNLP server was stopped")
            if not self._has_ended() and self.is_alive():
                return
            self._lost += 1
            if self._lost > LOST_IN_A_ROW:
                raise UserError(
                    f"the CoreNLP server died {self._lost} times in a row: {self._last_words()}; give it more memory "
                    f"than {self.memory}"
                )
            logger.warning("the CoreNLP server has died; it is started again")
            self._stop()
            self.start()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def close(self) -> None:
        """Stop the server."""
        self._is_closed = True
        self._stop()
        self._log.close()


def check_installation() -> None:
    """Raise UserError unless Java and CoreNLP are where stanza looks for them."""
    if shutil.which("java") is None:
        raise UserError("Java is not on PATH, and CoreNLP needs it: install Java 17 (apt-get install openjdk-17-jre)")
    try:
        classpath = resolve_classpath()
    except FileNotFoundError as error:
        raise UserError(f"Stanford CoreNLP is not there: {INSTALLING}") from error
    folder = Path(classpath)
    if folder.name == "*" and not any(folder.parent.glob("*corenlp*.jar")):
        raise UserError(f"{folder.parent} holds no CoreNLP: {INSTALLING}")


class CoreNLPExtractor(RelationExtractor):
    """Tuples by CoreNLP's OpenIE (``corenlp-openie``, English), or from its dependency trees.

    Args:
        name: a key of ``ANNOTATORS``
        language: a code such as ``de``, or CoreNLP's name of it
        urls: servers that run already and share the work; none: one is started
        memory: of the started server
        timeout: seconds for a request
        properties: more of CoreNLP's, as ``depparse.model``

    Raises:
        UserError: there is no server, or it does not know the language
    """

    def __init__(
        self,
        name: str,
        language: str,
        urls: Sequence[str] = (),
        memory: str = "4G",
        timeout: float = 60,
        properties: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.name = name
        request = {**request_properties(name, language), **(properties or {})}
        self._lock = threading.Lock()
        self._servers: List[Server] = [Server(url.rstrip("/"), request, timeout) for url in urls]
        if not urls:
            self._servers = [OwnServer(request, timeout, memory)]
        try:
            for server in self._servers:
                server.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def parse(self, sentences: Sequence[Sequence[str]]) -> List[Tuple[List[str], List[RelationTuple]]]:
        """What the least busy server makes of sentences, all in one request; see :meth:`RelationExtractor.parse`.

        Raises:
            NotParsed: the server failed on them, took too long, or died
            UserError: there is no server any more
        """
        text = "\n".join(" ".join(words) for words in sentences)
        for _ in range(ATTEMPTS if len(sentences) == 1 else 1):
            with self._lock:
                server = min(self._servers, key=lambda server: server.in_flight)
                server.in_flight += 1
            try:
                document = server.annotate(text)
                read = read_triples if self.name == "corenlp-openie" else read_dependencies
                return [([token.word for token in found.token], read(found)) for found in document.sentence]
            except ServerLost as error:
                self._replace(server, error)
            finally:
                with self._lock:
                    server.in_flight -= 1
        raise NotParsed("the server dies of it")

    def _replace(self, server: Server, error: ServerLost) -> None:
        """Go on without a server that others can stand in for; else wait until it is back."""
        with self._lock:
            if len(self._servers) > 1:
                if server in self._servers:
                    self._servers.remove(server)
                    logger.warning("the CoreNLP server at %s is lost (%s); the others go on", server.url, error)
                return
        server.restart()


def request_properties(name: str, language: str) -> Dict[str, str]:
    """What an extractor asks of a server; UserError where it does not know the language."""
    return {"annotators": ANNOTATORS[name], "pipelineLanguage": corenlp_language(language, name), **PROPERTIES}


def corenlp_language(language: str, name: str) -> str:
    """CoreNLP's name of a language; UserError where the extractor does not know it."""
    full = LANGUAGE_SHORTHANDS_TO_FULL.get(language.lower(), language.lower())
    if full not in LANGUAGE_SHORTHANDS_TO_FULL.values():
        known = ", ".join(LANGUAGE_SHORTHANDS_TO_FULL)
        raise UserError(f"CoreNLP has no models for the language {language!r}: name one of {known} (--language)")
    if name == "corenlp-openie" and full != "english":
        raise UserError(
            f"corenlp-openie knows English only, not {language!r}: take corenlp-dependencies, or, where the text is "
            f"English, say so (--language en)"
        )
    return full


def read_triples(sentence: Any) -> List[RelationTuple]:
    """The tuples of OpenIE in a sentence of CoreNLP's protobuf document. Each word is named there; the spans of the
    JSON answer would take in everything between words that are no neighbours."""
    return [
        RelationTuple(
            *(
                sorted({token.tokenIndex for token in part})
                for part in (triple.subjectTokens, triple.relationTokens, triple.objectTokens)
            )
        )
        for triple in sentence.openieTriple
    ]


def read_dependencies(sentence: Any) -> List[RelationTuple]:
    """The tuples of the dependency tree in a sentence of CoreNLP's protobuf document."""
    heads, labels = [-1] * len(sentence.token), ["root"] * len(sentence.token)
    for edge in sentence.basicDependencies.edge:  # words are counted from 1 here
        heads[edge.target - 1] = edge.source - 1
        labels[edge.target - 1] = edge.dep
    return tuples_of_tree(heads, labels)

"""Relation tuples from Stanford CoreNLP: from OpenIE, or from dependency trees."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from stanza.protobuf import Sentence
from stanza.server.client import LANGUAGE_SHORTHANDS_TO_FULL

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.corenlp_server import CoreNLPServer, ServerLost
from fairseq_ctxgates.relations.extraction.dependencies import tuples_of_tree
from fairseq_ctxgates.relations.extraction.extractor import (
    FAILURES_IN_A_ROW,
    NotParsed,
    RelationExtractor,
    RelationTuple,
)

logger = logging.getLogger(__name__)

ANNOTATORS = {
    "corenlp-openie": "tokenize,ssplit,pos,lemma,depparse,natlog,openie",
    "corenlp-dependencies": "tokenize,ssplit,pos,depparse",
}
PROPERTIES = {  # keep the words of the data: split at white space only, one sentence on each line
    "tokenize.whitespace": "true",
    "ssplit.eolonly": "true",
    "openie.triple.strict": "true",
}
LANGUAGE_OPTION = "ctxgates relations --language, fairseq-interactive --relation-language"
ATTEMPTS = 3  # for a single sentence: another request may have caused the crash


class CoreNLPExtractor(RelationExtractor):
    """Tuples from CoreNLP's OpenIE (``corenlp-openie``, English only), or from its dependency trees.

    Args:
        name: a key of ``ANNOTATORS``
        servers: one or more servers, which share the work; the extractor starts and closes them

    Raises:
        UserError: a server does not start or answer, or has no models for the language
    """

    def __init__(self, name: str, servers: Sequence[CoreNLPServer]) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._servers = list(servers)
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
        """Parse sentences in one request to the least busy server; see :meth:`RelationExtractor.parse`.

        A sentence that one server answers with an error is sent to a second one, if there is one.

        Raises:
            NotParsed: the server failed, exceeded the time limit, or crashed
            UserError: no server runs any more
        """
        text = "\n".join(" ".join(words) for words in sentences)
        attempts = ATTEMPTS if len(sentences) == 1 else 1
        failed: Optional[CoreNLPServer] = None
        reason = ""
        for _ in range(attempts):
            with self._least_busy_server(failed) as server:
                try:
                    document = server.annotate(text)
                except ServerLost as error:
                    reason = f"the server crashed: {error}"
                    self._handle_lost_server(server, error)
                    continue
                except NotParsed as error:
                    reason = str(error)
                    if attempts == 1 or failed is not None or len(self._servers) == 1:
                        raise
                    failed = server
                    continue
            if failed is not None:
                self._blame(failed)
            server.failures_in_a_row = 0
            read = read_triples if self.name == "corenlp-openie" else read_dependencies
            return [([token.word for token in parsed.token], read(parsed)) for parsed in document.sentence]
        raise NotParsed(reason)

    @contextmanager
    def _least_busy_server(self, failed: Optional[CoreNLPServer]) -> Iterator[CoreNLPServer]:
        """A server for one request; not the server that failed on the request, if there are others."""
        with self._lock:
            others = [server for server in self._servers if server is not failed]
            server = min(others or self._servers, key=lambda server: server.requests_in_progress)
            server.requests_in_progress += 1
        try:
            yield server
        finally:
            with self._lock:
                server.requests_in_progress -= 1

    def _blame(self, server: CoreNLPServer) -> None:
        """Count a failure on a sentence that another server parsed. After several failures in a row the server is
        removed: a broken server often fails fast, is then the least busy one, and would get most of the work."""
        server.failures_in_a_row += 1
        if server.failures_in_a_row >= FAILURES_IN_A_ROW:
            self._remove(server, f"it failed on {server.failures_in_a_row} sentences that another server parsed")

    def _handle_lost_server(self, server: CoreNLPServer, error: ServerLost) -> None:
        """Remove a lost server if other servers are left; otherwise wait until the server runs again."""
        if not self._remove(server, str(error)):
            server.restart()

    def _remove(self, server: CoreNLPServer, reason: str) -> bool:
        """Remove a server if other servers are left. Return whether it has been removed, now or earlier."""
        with self._lock:
            if server not in self._servers:  # removed when another of its requests was lost
                return True
            if len(self._servers) == 1:
                return False
            self._servers.remove(server)
        logger.warning(f"the CoreNLP server at {server.url} is lost ({reason}); the remaining servers continue")
        return True


def request_properties(name: str, language: str) -> Dict[str, str]:
    """The properties of an extractor's requests; UserError if the extractor does not support the language."""
    return {"annotators": ANNOTATORS[name], "pipelineLanguage": corenlp_language(language, name), **PROPERTIES}


def corenlp_language(language: str, name: str) -> str:
    """CoreNLP's name of a language.

    Args:
        language: a code such as ``de``, or CoreNLP's name
        name: name of the extractor

    Raises:
        UserError: the extractor does not support the language
    """
    full = LANGUAGE_SHORTHANDS_TO_FULL.get(language.lower(), language.lower())
    if full not in LANGUAGE_SHORTHANDS_TO_FULL.values():
        known = ", ".join(LANGUAGE_SHORTHANDS_TO_FULL)
        raise UserError(f"CoreNLP has no models for the language {language!r}: name one of {known} ({LANGUAGE_OPTION})")
    if name == "corenlp-openie" and full != "english":
        raise UserError(
            f"corenlp-openie supports English only, not {language!r}: use corenlp-dependencies, or the language en if "
            f"the text is English ({LANGUAGE_OPTION})"
        )
    return full


def read_triples(sentence: Sentence) -> List[RelationTuple]:
    """The OpenIE tuples of a parsed sentence.

    The protobuf document names each word of a tuple; the JSON answer has spans only, which would include the words
    between two words that are not adjacent.
    """
    return [
        RelationTuple(
            *(
                sorted({token.tokenIndex for token in part})
                for part in (triple.subjectTokens, triple.relationTokens, triple.objectTokens)
            )
        )
        for triple in sentence.openieTriple
    ]


def read_dependencies(sentence: Sentence) -> List[RelationTuple]:
    """The tuples of the dependency tree of a parsed sentence."""
    heads, labels = [-1] * len(sentence.token), ["root"] * len(sentence.token)
    for edge in sentence.basicDependencies.edge:  # CoreNLP counts words from 1
        heads[edge.target - 1] = edge.source - 1
        labels[edge.target - 1] = edge.dep
    return tuples_of_tree(heads, labels)

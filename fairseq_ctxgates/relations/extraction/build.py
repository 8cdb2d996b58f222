"""Making a relation extractor by its name, once in each process."""

from __future__ import annotations

import atexit
import threading
from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.extras import needs_extra
from fairseq_ctxgates.relations.extraction.extractor import RelationExtractor

EXTRACTORS = ("corenlp-openie", "corenlp-dependencies", "stanza")
SERVER_MEMORY = "4G"  # of a CoreNLP server
REQUEST_TIMEOUT = 60  # seconds


@dataclass(frozen=True)
class ExtractionOptions:
    """The options that the tuples of a sentence depend on.

    Attributes:
        extractor: its name, one of ``EXTRACTORS``
        language: language of the sentences, a code of two letters
        remove_bpe: how their subwords are joined, one of ``GROUPABLE``
        properties: names and values of additional CoreNLP properties, such as ``depparse.model``
    """

    extractor: str
    language: str
    remove_bpe: str
    properties: Tuple[Tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ServerOptions:
    """The CoreNLP servers, which the tuples do not depend on.

    Attributes:
        urls: addresses of running servers, which share the work; if empty, a server is started
        memory: memory of a server that is started, such as ``4G``
        timeout: time limit of a request to a server, in seconds
    """

    urls: Tuple[str, ...] = ()
    memory: str = SERVER_MEMORY
    timeout: float = REQUEST_TIMEOUT


def build_extractor(options: ExtractionOptions, server_options: ServerOptions) -> RelationExtractor:
    """Make an extractor.

    Raises:
        UserError: the extractor is not installed, no server answers, or the extractor does not support the language
    """
    name = options.extractor
    if name not in EXTRACTORS:
        raise UserError(f"{name!r} is not a relation extractor: name one of {', '.join(EXTRACTORS)}")
    # Importing stanza, which also has the client of CoreNLP's servers, takes seconds.
    with needs_extra("relations", f"the extractor {name}"):
        import stanza  # noqa: F401
    if name == "stanza":
        from fairseq_ctxgates.relations.extraction.stanza_pipeline import StanzaExtractor

        if server_options.urls:
            raise UserError("a Stanza pipeline needs no server: leave out the addresses of CoreNLP servers")
        return StanzaExtractor(options.language)
    from fairseq_ctxgates.relations.extraction.corenlp import CoreNLPExtractor, request_properties
    from fairseq_ctxgates.relations.extraction.corenlp_server import CoreNLPServer, ExternalServer, ManagedServer

    request = {**request_properties(name, options.language), **dict(options.properties)}
    timeout = server_options.timeout
    servers: Sequence[CoreNLPServer] = [ExternalServer(url, request, timeout) for url in server_options.urls]
    return CoreNLPExtractor(name, servers or [ManagedServer(request, timeout, server_options.memory)])


# Each process, also on a Dask cluster, has one extractor for its options, which its threads share: it may be a server,
# which takes seconds to start.
_extractors: Dict[Tuple[ExtractionOptions, ServerOptions], RelationExtractor] = {}
_lock = threading.Lock()
_closings = 0  # how often they were closed, perhaps while another thread made one


def get_extractor(options: ExtractionOptions, server_options: ServerOptions) -> RelationExtractor:
    """The extractor of this process with these options, made at the first call.

    Raises:
        UserError: as :func:`build_extractor`, or :func:`close_extractors` was called meanwhile
    """
    with _lock:
        key = (options, server_options)
        if key not in _extractors:
            closings = _closings
            extractor = build_extractor(*key)
            if closings != _closings:
                extractor.close()
                raise UserError("the extraction was stopped")
            _extractors[key] = extractor
            atexit.register(close_extractors)  # last, and so called before what the extractor's packages registered
        return _extractors[key]


def close_extractors() -> None:
    """Close the extractors of this process, and the servers that they started; also called when the process ends."""
    global _closings
    _closings += 1
    while _extractors:
        _extractors.popitem()[1].close()

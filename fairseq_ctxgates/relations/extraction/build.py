"""Making a relation extractor by its name."""

from __future__ import annotations

from typing import Mapping, Optional, Sequence

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.extras import needs_extra
from fairseq_ctxgates.relations.extraction.extractor import RelationExtractor

EXTRACTORS = ("corenlp-openie", "corenlp-dependencies", "stanza")
SERVER_MEMORY = "4G"  # of a CoreNLP server
REQUEST_TIMEOUT = 60  # seconds


def build_extractor(
    name: str,
    language: str,
    urls: Sequence[str] = (),
    memory: str = SERVER_MEMORY,
    timeout: float = REQUEST_TIMEOUT,
    properties: Optional[Mapping[str, str]] = None,
) -> RelationExtractor:
    """Make the extractor with this name, one of ``EXTRACTORS``.

    Args:
        language: language of the sentences, a code of two letters
        urls: addresses of running CoreNLP servers, which share the work; if empty, a server is started
        memory: memory of a server that is started, such as ``4G``
        timeout: time limit of a request to a server, in seconds
        properties: additional CoreNLP properties, such as ``depparse.model``

    Raises:
        UserError: the extractor is not installed, no server answers, or the extractor does not support the language
    """
    if name not in EXTRACTORS:
        raise UserError(f"{name!r} is not a relation extractor: name one of {', '.join(EXTRACTORS)}")
    # Importing stanza, which also has the client of CoreNLP's servers, takes seconds.
    with needs_extra("relations", f"the extractor {name}"):
        import stanza  # noqa: F401
    if name == "stanza":
        from fairseq_ctxgates.relations.extraction.stanza_pipeline import StanzaExtractor

        if urls:
            raise UserError("a Stanza pipeline needs no server: leave out the addresses of CoreNLP servers")
        return StanzaExtractor(language)
    from fairseq_ctxgates.relations.extraction.corenlp import CoreNLPExtractor, request_properties
    from fairseq_ctxgates.relations.extraction.corenlp_server import CoreNLPServer, ExternalServer, ManagedServer

    request = {**request_properties(name, language), **(properties or {})}
    servers: Sequence[CoreNLPServer] = [ExternalServer(url, request, timeout) for url in urls]
    return CoreNLPExtractor(name, servers or [ManagedServer(request, timeout, memory)])

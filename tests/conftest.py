"""Fixtures that several test files share."""

from __future__ import annotations

import os
from typing import Iterator, List

import pytest

from fairseq_ctxgates.errors import UserError


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Keep the tests that need CoreNLP in one process of pytest-xdist: each process would start a server."""
    for item in items:
        if "corenlp_url" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("corenlp"))


@pytest.fixture(scope="session")
def corenlp_url() -> Iterator[str]:
    """The address of a real CoreNLP server. Where Java or CoreNLP is not there the test is skipped, or fails if the
    environment variable CTXGATES_REQUIRE_CORENLP is set."""
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
        yield server.url
    finally:
        server.close()

"""An extractor in place of parsers, which have to be downloaded or started."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Sequence, Tuple
from unittest import mock

from fairseq_ctxgates.relations.extraction import build
from fairseq_ctxgates.relations.extraction.extractor import NotParsed, RelationExtractor, RelationTuple


def first_two(words: Sequence[str]) -> List[List[int]]:
    """The first two words of a sentence as its only tuple; a sentence of one word has none."""
    return [[0, 1]] if len(words) > 1 else []


class StubExtractor(RelationExtractor):
    """Finds what a function says, and keeps the sentences that it was sent.

    Attributes:
        find: the tuples of a sentence, each as the positions of its words: subject, relation, and all after them object
        fails: whether it cannot parse a sentence, given as text
        parsed: the sentences that it has parsed, in order
        is_closed: since it was last made
    """

    def __init__(self, find: Callable[[Sequence[str]], List[List[int]]] = first_two) -> None:
        self.find = find
        self.fails: Callable[[str], bool] = lambda text: False
        self.parsed: List[str] = []
        self.is_closed = False

    def parse(self, sentences: Sequence[Sequence[str]]) -> List[Tuple[List[str], List[RelationTuple]]]:
        assert not self.is_closed
        texts = [" ".join(words) for words in sentences]
        if any(map(self.fails, texts)):
            raise NotParsed("HTTP 500")
        self.parsed += texts
        return [
            (list(words), [RelationTuple(found[:1], found[1:2], found[2:]) for found in self.find(words)])
            for words in sentences
        ]

    def close(self) -> None:
        self.is_closed = True


def make_extractor(
    name: str, language: str, urls: Sequence[str] = (), properties: Sequence[Tuple[str, str]] = (), **server: Any
) -> RelationExtractor:
    """The extractor of this name; ``server`` has the other options of CoreNLP servers."""
    options = build.ExtractionOptions(name, language, "none", tuple(properties))
    return build.build_extractor(options, build.ServerOptions(tuple(urls), **server))


@contextmanager
def in_place_of_parsers(make: Callable[..., RelationExtractor]) -> Iterator[Any]:
    """Extractors are made by this function, given what ``build_extractor`` is; the mock knows its calls. None is left
    over from before the block, or after it."""
    build.close_extractors()
    built = mock.create_autospec(build.build_extractor, side_effect=make)
    with mock.patch.object(build, "build_extractor", built):
        try:
            yield built
        finally:
            build.close_extractors()


@contextmanager
def parsing_by(extractor: StubExtractor) -> Iterator[Any]:
    """As :func:`in_place_of_parsers`, with this extractor for every name and language."""

    def make(*_: object, **__: object) -> StubExtractor:
        extractor.is_closed = False
        return extractor

    with in_place_of_parsers(make) as built:
        yield built

"""What an extractor of relation tuples owes: words in, tuples of word positions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.words import words_of_tokens

EXTRACTORS = ("corenlp-openie", "corenlp-dependencies", "stanza")


class RelationTuple(NamedTuple):
    """A tuple as the positions of its words in the sentence, from 0; a part may be empty."""

    subject: List[int]
    relation: List[int]
    object: List[int]

    @property
    def words(self) -> List[int]:
        """The positions of all words, in order."""
        return sorted({*self.subject, *self.relation, *self.object})


class NotParsed(Exception):
    """What was sent to a parser did not come back parsed."""


class RelationExtractor(ABC):
    """Extracts relation tuples from sentences of words; a context manager that ends what it started.

    A subclass says how sentences are parsed (``parse``) and how many at once (``sentences_at_once``,
    ``characters_at_once``). It may be asked by several threads at a time.
    """

    sentences_at_once: ClassVar[int] = 50
    characters_at_once: ClassVar[int] = 20_000

    def __enter__(self) -> RelationExtractor:
        return self

    def __exit__(
        self,
        error_type: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027  most have nothing to end
        """End what was started."""

    @abstractmethod
    def parse(self, sentences: Sequence[Sequence[str]]) -> List[Tuple[List[str], List[RelationTuple]]]:
        """What a parser makes of sentences: the words of each as they come back, and its tuples.

        Raises:
            NotParsed: the parser failed, or took too long
            UserError: there is no parser any more
        """

    def extract(self, sentences: Sequence[Sequence[str]]) -> List[Optional[List[List[int]]]]:
        """The tuples of each sentence as the sorted positions of their words; None: it could not be parsed."""
        return [
            None if tuples is None else [found.words for found in tuples] for tuples in self.extract_tuples(sentences)
        ]

    def extract_tuples(self, sentences: Sequence[Sequence[str]]) -> List[Optional[List[RelationTuple]]]:
        """The tuples of each sentence, in order of their positions; None: it could not be parsed, or came back as
        other words than those sent, so that nobody knows which words its tuples are about."""
        results: List[Optional[List[RelationTuple]]] = [[] for _ in sentences]
        for rows in self._batches(sentences):
            for row, tuples in zip(rows, self._extract_at_once([sentences[row] for row in rows])):
                results[row] = tuples
        return results

    def _batches(self, sentences: Sequence[Sequence[str]]) -> Iterator[List[int]]:
        """The rows that are parsed together; rows without words in none."""
        rows: List[int] = []
        characters = 0
        for row, words in enumerate(sentences):
            if not words:
                continue
            length = sum(map(len, words)) + len(words)
            if rows and (len(rows) == self.sentences_at_once or characters + length > self.characters_at_once):
                yield rows
                rows, characters = [], 0
            rows.append(row)
            characters += length
        if rows:
            yield rows

    def _extract_at_once(self, sentences: Sequence[Sequence[str]]) -> List[Optional[List[RelationTuple]]]:
        """Parse sentences together; where what comes back is not what was sent, each alone."""
        try:
            parsed = self.parse(sentences)
        except NotParsed:
            parsed = []
        if [words for words, _ in parsed] == [list(words) for words in sentences]:
            return [sorted(tuples) for _, tuples in parsed]
        if len(sentences) == 1:
            return [None]
        return [tuples for words in sentences for tuples in self._extract_at_once([words])]


def build_extractor(
    name: str,
    language: str,
    urls: Sequence[str] = (),
    memory: str = "4G",
    timeout: float = 60,
    properties: Optional[Mapping[str, str]] = None,
) -> RelationExtractor:
    """Make an extractor by its name, one of ``EXTRACTORS``.

    Args:
        language: of the sentences, as a code of two letters
        urls: CoreNLP servers that run already and share the work; none: one is started
        memory: of a server that is started
        timeout: seconds for a request to a server
        properties: more of CoreNLP's, as ``depparse.model``

    Raises:
        UserError: what the extractor needs is not there, or does not know the language
    """
    if name not in EXTRACTORS:
        raise UserError(f"there is no extractor of relations called {name!r}; there are {', '.join(EXTRACTORS)}")
    # Importing stanza takes seconds.
    if name == "stanza":
        from fairseq_ctxgates.relations.extraction.stanza_pipeline import StanzaExtractor

        if urls:
            raise UserError("a Stanza pipeline runs here: leave out the addresses of CoreNLP servers")
        return StanzaExtractor(language)
    from fairseq_ctxgates.relations.extraction.corenlp import CoreNLPExtractor

    return CoreNLPExtractor(name, language, urls, memory, timeout, properties)


def relations_of_tokens(
    extractor: RelationExtractor, rows: Sequence[Sequence[str]], remove_bpe: str = "subword_nmt"
) -> List[List[List[int]]]:
    """The tuples of rows of tokens (strings of the dictionary, sub-words and escapes and all, end of sentence left
    out) as groups of token positions, from 0; a row that cannot be parsed has none.

    Args:
        remove_bpe: see :func:`words_of_tokens`
    """
    sentences = [words_of_tokens(row, remove_bpe) for row in rows]
    extracted = extractor.extract([sentence.words for sentence in sentences])
    return [
        [sentence.token_positions(group) for group in groups or []] for sentence, groups in zip(sentences, extracted)
    ]

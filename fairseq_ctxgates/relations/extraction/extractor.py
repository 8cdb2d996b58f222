"""The base class of relation extractors: words in, tuples of word positions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.words import words_of_tokens

MAX_WORDS = 1000  # longer sentences are not parsed: OpenIE takes 20 s for 1,000 words, and more than a minute for 2,000
FAILURES_IN_A_ROW = 5  # sentences that fail before a sentence that was parsed shows whether the parser still works
TRIAL_SENTENCE = ("This", "is", "a", "test", ".")


class RelationTuple(NamedTuple):
    """A tuple as the positions of its words in the sentence, from 0; each part may be empty."""

    subject: List[int]
    relation: List[int]
    object: List[int]

    @property
    def words(self) -> List[int]:
        """The positions of all words, in ascending order."""
        return sorted({*self.subject, *self.relation, *self.object})


Tuples = Optional[List[RelationTuple]]  # of a sentence; None if it could not be parsed


class NotParsed(Exception):
    """The parser could not parse what it was sent."""


class RelationExtractor(ABC):
    """A context manager that extracts relation tuples from sentences of words.

    A subclass defines how sentences are parsed (``parse``) and the maximum size of a request (``sentences_at_once``,
    ``characters_at_once``). Several threads may use an extractor at the same time.
    """

    sentences_at_once: ClassVar[int] = 50
    characters_at_once: ClassVar[int] = 20_000

    _failures_in_a_row = 0
    _last_parsed: Sequence[str] = TRIAL_SENTENCE

    def __enter__(self) -> RelationExtractor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027  most extractors have nothing to stop
        """Stop the processes that the extractor started."""

    @abstractmethod
    def parse(self, sentences: Sequence[Sequence[str]]) -> List[Tuple[List[str], List[RelationTuple]]]:
        """Parse sentences; return for each sentence the words that the parser returned, and the tuples.

        Raises:
            NotParsed: the parser failed or exceeded the time limit
            UserError: the parser no longer runs
        """

    def extract(self, sentences: Sequence[Sequence[str]]) -> List[Optional[List[List[int]]]]:
        """The tuples of each sentence as sorted word positions; None for a sentence that could not be parsed."""
        return [
            None if tuples is None else [entry.words for entry in tuples] for tuples in self.extract_tuples(sentences)
        ]

    def extract_tuples(self, sentences: Sequence[Sequence[str]]) -> List[Tuples]:
        """The tuples of each sentence, sorted by position.

        The result is None for a sentence that could not be parsed, that is too long to be parsed, or whose words the
        parser changed: the positions of changed words are unknown.

        Raises:
            UserError: the parser no longer runs, or fails on sentences that it has parsed before
        """
        results: List[Tuples] = [None if is_too_long(words) else [] for words in sentences]
        for rows in self._batches(sentences):
            for row, tuples in zip(rows, self._extract_batch([sentences[row] for row in rows])):
                results[row] = tuples
        return results

    def _batches(self, sentences: Sequence[Sequence[str]]) -> Iterator[List[int]]:
        """The rows that are parsed in one request; rows without words, or with too many, are left out."""
        rows: List[int] = []
        characters = 0
        for row, words in enumerate(sentences):
            if not words or is_too_long(words):
                continue
            length = sum(map(len, words)) + len(words)
            if rows and (len(rows) == self.sentences_at_once or characters + length > self.characters_at_once):
                yield rows
                rows, characters = [], 0
            rows.append(row)
            characters += length
        if rows:
            yield rows

    def _extract_batch(self, sentences: Sequence[Sequence[str]]) -> List[Tuples]:
        """Parse sentences in one request; if this fails or words change, parse each sentence alone."""
        reason = "the words changed"
        try:
            parsed = self.parse(sentences)
        except NotParsed as error:
            parsed, reason = [], str(error)
        if [words for words, _ in parsed] == [list(words) for words in sentences]:
            self._failures_in_a_row, self._last_parsed = 0, sentences[-1]
            return [sorted(tuples) for _, tuples in parsed]
        if len(sentences) == 1:
            self._check_after_failure(reason)
            return [None]
        return [tuples for words in sentences for tuples in self._extract_batch([words])]

    def _check_after_failure(self, reason: str) -> None:
        """After several failures in a row, parse once more what was parsed last: UserError if this fails as well.

        If it succeeds, the sentences are to blame, not the parser: a rerun may have nothing else left to parse.
        """
        self._failures_in_a_row += 1
        if self._failures_in_a_row < FAILURES_IN_A_ROW:
            return
        try:
            self.parse([self._last_parsed])
        except NotParsed as error:
            raise UserError(
                f"the parser no longer works: it failed on {self._failures_in_a_row} sentences in a row ({reason}), "
                f"and then on one that is harmless ({error}); look at its log and its memory, and run the same command "
                f"again: ctxgates relations continues where it stopped"
            ) from error
        self._failures_in_a_row = 0


def is_too_long(words: Sequence[str]) -> bool:
    """Whether a sentence has more words than are parsed."""
    return len(words) > MAX_WORDS


def relations_of_tokens(
    extractor: RelationExtractor, rows: Sequence[Sequence[str]], remove_bpe: str
) -> List[List[List[int]]]:
    """Extract the tuples of rows of tokens, each tuple as a group of token positions.

    Args:
        rows: tokens of the dictionary, with subwords and escapes, without end of sentence
        remove_bpe: see :func:`words_of_tokens`

    Returns:
        for each row its groups of token positions, from 0; no group for a row that cannot be parsed
    """
    sentences = [words_of_tokens(row, remove_bpe) for row in rows]
    extracted = extractor.extract([sentence.words for sentence in sentences])
    return [
        [sentence.token_positions(group) for group in groups or []] for sentence, groups in zip(sentences, extracted)
    ]

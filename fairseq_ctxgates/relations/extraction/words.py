"""The words that the tokens of binarized data stand for, as a parser is to read them, one to one with their tokens."""

from __future__ import annotations

import re
from typing import Iterator, List, NamedTuple, Sequence, Tuple

SUBWORD_MARK = "@@"  # subword-nmt: the word goes on
WORD_START = "\u2581"  # sentencepiece: a word begins
# The ways to join sub-words, named as fairseq's --remove-bpe (--post-process) names them.
REMOVE_BPE = ("subword_nmt", "sentencepiece", "none")

UNKNOWN = "<unk>"
NEUTRAL = "unk"  # a word that parsers do not know either, so that they judge it by its context

# What Moses' tokenizer writes for characters that its other tools would stumble over.
ESCAPES = {
    "&apos;": "'",
    "&quot;": '"',
    "&lt;": "<",
    "&gt;": ">",
    "&#91;": "[",
    "&#93;": "]",
    "&#124;": "|",
    "&bar;": "|",
    "&amp;": "&",
    "@-@": "-",
}
_ESCAPE = re.compile("|".join(map(re.escape, ESCAPES)))


class Words(NamedTuple):
    """The words of a sentence.

    words: as they are sent to a parser
    positions: for each word its tokens' positions in the row, from 0
    is_unknown: for each word whether ``<unk>`` is or was part of it
    """

    words: List[str]
    positions: List[List[int]]
    is_unknown: List[bool]

    def token_positions(self, words: Sequence[int]) -> List[int]:
        """The positions of the tokens of some words, in order."""
        return sorted({position for word in words for position in self.positions[word]})


def unescape(word: str) -> str:
    """A word without the escapes of Moses' tokenizer, each undone once."""
    return _ESCAPE.sub(lambda match: ESCAPES[match[0]], word) if "&" in word or "@" in word else word


def words_of_tokens(tokens: Sequence[str], remove_bpe: str = "subword_nmt") -> Words:
    """The words of a row of tokens, end of sentence left out: sub-words joined, escapes undone. An unknown token that
    is a word becomes a neutral one; where it is part of a word, the other parts are the word.

    Args:
        tokens: as they stand in the dictionary
        remove_bpe: one of ``REMOVE_BPE``
    """
    words, positions, is_unknown = [], [], []
    for parts in _SPLITTERS[remove_bpe](tokens):
        texts = [text for text, _ in parts]
        unknown = UNKNOWN in texts
        words.append(unescape("".join(text for text in texts if text != UNKNOWN)) or NEUTRAL)
        positions.append([position for _, position in parts])
        is_unknown.append(unknown)
    return Words(words, positions, is_unknown)


Parts = List[Tuple[str, int]]  # of a word: text, position of the token


def _split_subword_nmt(tokens: Sequence[str]) -> Iterator[Parts]:
    parts: Parts = []
    for position, token in enumerate(tokens):
        goes_on = token.endswith(SUBWORD_MARK)
        parts.append((token[: -len(SUBWORD_MARK)] if goes_on else token, position))
        if not goes_on:
            yield parts
            parts = []
    if parts:
        yield parts


def _split_sentencepiece(tokens: Sequence[str]) -> Iterator[Parts]:
    """A token may hold several words, then it is part of each."""
    parts: Parts = []
    for position, token in enumerate(tokens):
        rest, *starts = token.split(WORD_START)
        if rest:
            parts.append((rest, position))
        for text in starts:
            if any(part for part, _ in parts):
                yield parts
                parts = []
            parts.append((text, position))
    if any(part for part, _ in parts):
        yield parts


def _split_none(tokens: Sequence[str]) -> Iterator[Parts]:
    return ([(token, position)] for position, token in enumerate(tokens))


_SPLITTERS = dict(zip(REMOVE_BPE, (_split_subword_nmt, _split_sentencepiece, _split_none)))

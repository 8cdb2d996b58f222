"""Words for a parser from the tokens of binarized data, with the token positions of each word."""

from __future__ import annotations

import re
from typing import Iterator, List, NamedTuple, Sequence, Tuple

from fairseq_ctxgates.data.data_directory import WORD_START

SUBWORD_MARK = "@@"  # subword-nmt: the word continues in the next token
# How sub-words are joined: values of fairseq's --remove-bpe (--post-process).
REMOVE_BPE = ("subword_nmt", "sentencepiece", "none")

UNKNOWN_TOKEN = "<unk>"
UNKNOWN_WORD = "unk"  # sent to the parser: not in its vocabulary, so the parser uses the context

# How Moses' tokenizer escapes characters that are special in its other tools.
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

    words: the words for the parser
    positions: for each word the positions of its tokens in the row, from 0
    is_unknown: for each word whether one of its tokens is ``<unk>``
    """

    words: List[str]
    positions: List[List[int]]
    is_unknown: List[bool]

    def token_positions(self, words: Sequence[int]) -> List[int]:
        """The positions of the tokens of these words, in ascending order."""
        return sorted({position for word in words for position in self.positions[word]})


def unescape(word: str) -> str:
    """A word with the escapes of Moses' tokenizer replaced, each once."""
    return _ESCAPE.sub(lambda match: ESCAPES[match[0]], word) if "&" in word or "@" in word else word


def words_of_tokens(tokens: Sequence[str], remove_bpe: str = "subword_nmt") -> Words:
    """Join the sub-words of a row of tokens to words, and replace the escapes of Moses' tokenizer.

    A word that is one unknown token becomes ``UNKNOWN_WORD``; an unknown token in a longer word is left out.

    Args:
        tokens: tokens of the dictionary, without end of sentence
        remove_bpe: one of ``REMOVE_BPE``
    """
    words, positions, is_unknown = [], [], []
    for parts in _SPLITTERS[remove_bpe](tokens):
        texts = [text for text, _ in parts]
        unknown = UNKNOWN_TOKEN in texts
        words.append(unescape("".join(text for text in texts if text != UNKNOWN_TOKEN)) or UNKNOWN_WORD)
        positions.append([position for _, position in parts])
        is_unknown.append(unknown)
    return Words(words, positions, is_unknown)


Parts = List[Tuple[str, int]]  # the text and the position of each token of a word


def _split_subword_nmt(tokens: Sequence[str]) -> Iterator[Parts]:
    parts: Parts = []
    for position, token in enumerate(tokens):
        continues = token.endswith(SUBWORD_MARK)
        parts.append((token[: -len(SUBWORD_MARK)] if continues else token, position))
        if not continues:
            yield parts
            parts = []
    if parts:
        yield parts


def _split_sentencepiece(tokens: Sequence[str]) -> Iterator[Parts]:
    """A token may contain the parts of several words; it then belongs to each of these words."""
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

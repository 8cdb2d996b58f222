"""Words for a parser from the tokens of binarized data, with the token positions of each word."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Sequence

from fairseq_ctxgates.data.subwords import group_subwords

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


class SourceSentence(NamedTuple):
    """The words of a row of tokens.

    Attributes:
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


def words_of_tokens(tokens: Sequence[str], remove_bpe: str) -> SourceSentence:
    """Join the subwords of a row of tokens to words, and replace the escapes of Moses' tokenizer.

    A word that is one unknown token becomes ``UNKNOWN_WORD``; an unknown token in a longer word is left out.

    Args:
        tokens: tokens of the dictionary, without end of sentence
        remove_bpe: see :func:`group_subwords`
    """
    words, positions, is_unknown = [], [], []
    for parts in group_subwords(tokens, remove_bpe):
        texts = [text for text, _ in parts]
        unknown = UNKNOWN_TOKEN in texts
        words.append(unescape("".join(text for text in texts if text != UNKNOWN_TOKEN)) or UNKNOWN_WORD)
        positions.append([position for _, position in parts])
        is_unknown.append(unknown)
    return SourceSentence(words, positions, is_unknown)

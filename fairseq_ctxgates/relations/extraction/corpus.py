"""The source sentences of binarized data as words, and which of them are the same."""

from __future__ import annotations

import hashlib
from typing import Iterator, List, Sequence, Tuple

import numpy as np
from fairseq.data import Dictionary
from tqdm import tqdm

from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.words import WORD_START, Words, words_of_tokens

MARKED_SHARE = 0.2  # of a dictionary's types: more are marked as beginnings of words by sentencepiece only


class SourceText:
    """The source side of a split, as words.

    Args:
        split: where it is
        remove_bpe: how sub-words are joined, see :func:`words_of_tokens`

    Raises:
        UserError: the data cannot be read, or have other sub-words
    """

    def __init__(self, split: Split, remove_bpe: str) -> None:
        self.split, self.remove_bpe = split, remove_bpe
        dictionary = Dictionary.load(str(split.dictionary_path(split.source_lang)))
        self._symbols, self._eos = dictionary.symbols, dictionary.eos()
        self._rows = split.load_language(split.source_lang)
        marked = sum(symbol.startswith(WORD_START) for symbol in self._symbols)
        if remove_bpe != "sentencepiece" and marked > MARKED_SHARE * len(self._symbols):
            raise UserError(
                f"{split.dictionary_path(split.source_lang)} holds the sub-words of sentencepiece: give "
                f"--remove-bpe sentencepiece"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Words:
        ids = self._rows[row].tolist()
        if ids and ids[-1] == self._eos:
            ids.pop()
        try:
            return words_of_tokens([self._symbols[token] for token in ids], self.remove_bpe)
        except IndexError as error:
            path = self.split.dictionary_path(self.split.source_lang)
            raise UserError(
                f"{self.split.text_prefix(self.split.source_lang)}.bin, row {row + 1}: holds the token id {max(ids)}, "
                f"but {path} has {len(self._symbols)} types: use the dictionary that the text was binarized with"
            ) from error

    def __iter__(self) -> Iterator[Words]:
        return (self[row] for row in range(len(self)))


def find_distinct(texts: Sequence[SourceText]) -> Tuple[List[np.ndarray], np.ndarray]:
    """Which sentences of several texts are the same, word by word.

    Returns:
        for each text the number of each row's sentence among the distinct ones, which are numbered as they are first
        met; for each distinct sentence the text and the row in which it is first met, (sentences, 2)
    """
    digests = np.empty(sum(map(len, texts)), "V16")
    with tqdm(total=len(digests), desc="reading", unit=" sentences", unit_scale=True) as bar:
        for place, words in enumerate(words for text in texts for words, _, _ in text):
            digests[place] = hashlib.blake2b("\0".join(words).encode("utf-8", "surrogatepass"), digest_size=16).digest()
            bar.update()
    _, first, which = np.unique(digests.view("S16"), return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    of_text = np.searchsorted(starts, first[order], side="right") - 1
    places = np.stack([of_text, first[order] - starts[of_text]], axis=1)
    return np.split(number[which], starts[1:-1]), places

"""The source sentences of binarized data as words, and the distinct sentences among them."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import Iterator, List, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.data.data_directory import PAD, PADDING_IN_TEXT, Split
from fairseq_ctxgates.data.subwords import check_subwords
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.words import SourceSentence, words_of_tokens


class SourceText:
    """The source sentences of a split, as words.

    Args:
        remove_bpe: how subwords are joined, see :func:`words_of_tokens`

    Raises:
        UserError: the data cannot be read, or need another value of ``remove_bpe``
    """

    def __init__(self, split: Split, remove_bpe: str) -> None:
        self.split, self.remove_bpe = split, remove_bpe
        dictionary = split.load_dictionary(split.source_lang)
        self._symbols, self._eos = dictionary.symbols, dictionary.eos()
        self._rows = split.load_language(split.source_lang)
        check_subwords(dictionary, split.dictionary_path(split.source_lang), remove_bpe)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> SourceSentence:
        ids = self._rows[row].tolist()
        if PAD in ids:
            raise UserError(f"{self.split.text_prefix(self.split.source_lang)}, row {row + 1}: {PADDING_IN_TEXT}")
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

    def __iter__(self) -> Iterator[SourceSentence]:
        return (self[row] for row in range(len(self)))


def find_distinct_sentences(texts: Sequence[SourceText]) -> Tuple[List[np.ndarray], np.ndarray]:
    """Number the distinct sentences of several texts, in the order of their first occurrence.

    Returns:
        for each text the index of each row's sentence, (rows,);
        the text and the row of the first occurrence of each distinct sentence, (sentences, 2)
    """
    digests = np.empty(sum(map(len, texts)), "S16")
    with tqdm(total=len(digests), desc="reading", unit=" sentences", unit_scale=True) as bar:
        for index, sentence in enumerate(chain.from_iterable(texts)):
            digests[index] = hashlib.blake2b(repr(sentence.words).encode(), digest_size=16).digest()
            bar.update()
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    order = np.argsort(first)
    indices = np.empty_like(order)
    indices[order] = np.arange(len(order))
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    text_of_first = np.searchsorted(starts, first[order], side="right") - 1
    places = np.stack([text_of_first, first[order] - starts[text_of_first]], axis=1)
    return np.split(indices[inverse], starts[1:-1]), places

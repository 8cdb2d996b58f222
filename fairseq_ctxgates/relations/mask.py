"""The relation mask: which words of a sentence see each other in its relation encoding (Li, Zhu et al. 2022)."""

import zlib
from typing import Sequence

import numpy as np

END_OF_TUPLE = -1


def pack_tuples(tuples: Sequence[Sequence[int]]) -> np.ndarray:
    """The row of a sentence: the token positions of each tuple, from 0, followed by END_OF_TUPLE; (row length,) int32.
    Tuples without positions are left out."""
    packed = [position for positions in tuples if len(positions) for position in (*positions, END_OF_TUPLE)]
    return np.array(packed, dtype=np.int32)


def relation_mask(row: np.ndarray, length: int, across_tuples: bool = False) -> np.ndarray:
    """Which positions of a sentence may see each other in its relation encoding (Li, Zhu et al. 2022, section 3.1).

    Args:
        row: the sentence's tuples, from :func:`pack_tuples`; positions that ``--truncate-source`` has cut off are
            ignored
        length: the number of tokens, end of sentence included
        across_tuples: whether i sees j if each of them is in any tuple; otherwise both must be in the same one

    Returns:
        M_s, (length, length), bool; a position in no tuple sees itself only, as end of sentence does; without tuples
        every position sees all
    """
    is_end = row == END_OF_TUPLE
    is_word = ~is_end & (row < length - 1)
    if not is_word.any():
        return np.ones((length, length), dtype=bool)
    tuple_of = np.cumsum(is_end)[is_word] * (not across_tuples)
    member = np.zeros((tuple_of.max() + 1, length), dtype=np.float32)
    member[tuple_of, row[is_word]] = 1
    mask = member.T @ member > 0
    np.fill_diagonal(mask, True)
    return mask


def shift_mask(mask: np.ndarray, sentence: np.ndarray) -> np.ndarray:
    """The relation mask, moved along the sentence, and from its end back to the beginning.

    As many tokens see each other as before, and the spans of the tuples stay whole, but they are not spans of words
    that have a relation. The number of tokens by which the mask moves is random, and depends on the sentence alone. End
    of sentence stays in its place, and so does the mask of a single word.

    Args:
        mask: M_s, (length, length), bool
        sentence: its tokens, end of sentence included, (length,)

    Returns:
        (length, length), bool
    """
    words = len(sentence) - 1
    distance = 1 + zlib.crc32(sentence.astype(np.int64).tobytes()) % max(words - 1, 1)
    order = np.append(np.roll(np.arange(words), distance), words)
    shifted: np.ndarray = mask[np.ix_(order, order)]
    return shifted

"""Texts as flat arrays of token ids, and the division of target types into blocks."""

from __future__ import annotations

from pathlib import Path
from typing import List, NamedTuple, Tuple

import numpy as np

from fairseq_ctxgates.compat import MMapIndexedDataset
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.errors import UserError


class Sentences(NamedTuple):
    """A text as one array of token ids.

    ids (tokens): the token ids of all sentences, one sentence after the other
    start (sentences + 1): where each sentence begins in ``ids``
    """

    ids: np.ndarray
    start: np.ndarray


def map_array(path: Path, dtype: np.dtype) -> np.ndarray:
    """Memory-map a file of numbers; changes to the array are not written to the file."""
    # Copy-on-write and not read-only: Numba would compile each function a second time for read-only arrays.
    return np.memmap(path, dtype, "c") if path.stat().st_size else np.empty(0, dtype)


def starts(sizes: np.ndarray) -> np.ndarray:
    """Where consecutive runs of these sizes begin, and where the last run ends; (runs + 1,) int64."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def map_language(prefix: Path) -> Sentences:
    """Memory-map one language of a split that fairseq binarized."""
    index = MMapIndexedDataset.Index(f"{prefix}.idx")
    return Sentences(map_array(Path(f"{prefix}.bin"), index.dtype), starts(index.sizes))


def map_split(split: Split) -> Tuple[Sentences, Sentences]:
    """Memory-map source and target of a split."""
    return map_language(split.text_prefix(split.source_lang)), map_language(split.text_prefix(split.target_lang))


def vocabulary_size(split: Split, lang: str) -> int:
    """The number of types in a language's dictionary, special symbols included; UserError without a dictionary."""
    return len(split.load_dictionary(lang))


def check_split(split: Split) -> None:
    """Raise UserError unless both languages can be read, have equally many sentences, and fit their dictionaries."""
    langs = (split.source_lang, split.target_lang)
    for lang in langs:
        if split.is_text(lang):
            raise UserError(f"{split.text_prefix(lang)} is text: binarize it with fairseq-preprocess")
    lengths = [len(split.load_language(lang)) for lang in langs]
    prefixes = [split.text_prefix(lang) for lang in langs]
    if lengths[0] != lengths[1]:
        raise UserError(
            f"{prefixes[0]}.bin has {lengths[0]} sentences, {prefixes[1]}.bin has {lengths[1]}: "
            f"align the two texts line by line and run fairseq-preprocess again"
        )
    for lang, prefix in zip(langs, prefixes):
        split.check_token_ids(lang, map_language(prefix).ids, vocabulary_size(split, lang))


def count_types(ids: np.ndarray, size: int) -> np.ndarray:
    """How often each of ``size`` types occurs in a text."""
    counts = np.zeros(size, np.int64)
    for first in range(0, len(ids), 1 << 20):  # in parts: bincount converts each id to eight bytes
        counts += np.bincount(ids[first : first + (1 << 20)], minlength=size)
    return counts


def smallest_dtype(size: int) -> np.dtype:
    """The smaller of two integer types that can store ``size`` token ids: less memory, so more cache hits."""
    return np.dtype(np.uint16 if size <= 1 << 16 else np.int32)


def divide_rows(work: np.ndarray, size: np.ndarray, memory: float, num_blocks: int) -> List[Tuple[int, int]]:
    """Divide rows into consecutive blocks ``(first, last + 1)`` with about equal work.

    Args:
        work (rows): the cost of each row
        size (rows): the bytes that each row needs
        memory: maximum bytes of a block; a block of a single row may need more
        num_blocks: wanted number of blocks; there are more if a block would not fit in memory
    """
    share = work.sum() / num_blocks
    blocks, first, block_work, block_size = [], 0, 0, 0
    for row, (row_work, row_size) in enumerate(zip(work.tolist(), size.tolist())):
        if row > first and (block_work + row_work > share or block_size + row_size > memory):
            blocks.append((first, row))
            first, block_work, block_size = row, 0, 0
        block_work += row_work
        block_size += row_size
    return [*blocks, (first, len(work))]

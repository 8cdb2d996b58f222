"""Sentences as flat arrays of token ids, and their division into blocks of target types."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, NamedTuple, Tuple

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.errors import UserError


class Sentences(NamedTuple):
    """A text: ``ids`` (tokens) holds the token ids of all sentences one after the other, ``start`` (sentences + 1)
    where each sentence begins."""

    ids: np.ndarray
    start: np.ndarray


def map_array(path: Path, dtype: Any) -> np.ndarray:
    """A file of numbers, memory-mapped; changes to the array do not reach the file."""
    # Copy-on-write instead of read-only, because Numba would compile everything once more for read-only arrays.
    return np.memmap(path, dtype, "c") if path.stat().st_size else np.empty(0, dtype)


def starts(sizes: np.ndarray) -> np.ndarray:
    """Where runs of the given sizes begin when they lie one after the other, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def map_side(prefix: Path) -> Sentences:
    """One language of a split as fairseq binarized it, memory-mapped."""
    index = MMapIndexedDataset.Index(f"{prefix}.idx")
    return Sentences(map_array(Path(f"{prefix}.bin"), index.dtype), starts(index.sizes))


def map_split(split: Split) -> Tuple[Sentences, Sentences]:
    """Source and target of a split, memory-mapped."""
    return map_side(split.text_prefix(split.source_lang)), map_side(split.text_prefix(split.target_lang))


def vocabulary_size(split: Split, lang: str) -> int:
    """The number of types in a language's dictionary, special symbols included; UserError when there is none."""
    return len(Dictionary.load(str(split.dictionary_path(lang))))


def check_split(split: Split) -> None:
    """Raise UserError unless both sides can be read, are equally long and hold only words of their dictionaries."""
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
        ids, size = map_side(prefix).ids, vocabulary_size(split, lang)
        if ids.max() >= size:
            raise UserError(
                f"{prefix}.bin holds the token id {ids.max()}, but {split.dictionary_path(lang)} has {size} types: "
                f"use the dictionary that the text was binarized with"
            )


def count_types(ids: np.ndarray, size: int) -> np.ndarray:
    """How often each of ``size`` types stands in a text."""
    counts = np.zeros(size, np.int64)
    for first in range(0, len(ids), 1 << 20):  # bincount makes each part eight bytes an id
        counts += np.bincount(ids[first : first + (1 << 20)], minlength=size)
    return counts


def types_dtype(size: int) -> Any:
    """The type in which the ids of a vocabulary are kept: the smaller it is, the more of the text is in the caches."""
    return np.uint16 if size <= 1 << 16 else np.int32


def row_blocks(work: np.ndarray, size: np.ndarray, memory: float, number: int) -> List[Tuple[int, int]]:
    """Divide rows into consecutive blocks ``(first, last + 1)``: some ``number`` of them with equal work, more where a
    block would not fit in memory.

    Args:
        work, size (rows): what a row costs, and how many bytes it needs
        memory: bytes that a block may need; a single row may need more
    """
    share = work.sum() / number
    blocks, first, block_work, block_size = [], 0, 0, 0
    for row, (row_work, row_size) in enumerate(zip(work.tolist(), size.tolist())):
        if row > first and (block_work + row_work > share or block_size + row_size > memory):
            blocks.append((first, row))
            first, block_work, block_size = row, 0, 0
        block_work += row_work
        block_size += row_size
    return [*blocks, (first, len(work))]

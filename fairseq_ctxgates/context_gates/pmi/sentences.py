"""Texts as flat arrays of token ids, and the division of target types into blocks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from fairseq_ctxgates.compat import MMapIndexedDataset
from fairseq_ctxgates.data.data_directory import ROWS_AT_ONCE, Split
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import name_file_if_disk_full


class Sentences(NamedTuple):
    """A text as one array of token ids.

    ids (tokens): the token ids of all sentences, one sentence after the other
    start (sentences + 1): where each sentence begins in ``ids``
    """

    ids: np.ndarray
    start: np.ndarray

    def between(self, first: int, last: int) -> Sentences:
        """The sentences from ``first`` to before ``last``, in the same array of ids."""
        return Sentences(self.ids, self.start[first : last + 1])


def map_array(path: Path, dtype: np.dtype) -> np.ndarray:
    """Memory-map a file of numbers; changes to the array are not written to the file."""
    # Copy-on-write and not read-only: Numba would compile each function a second time for read-only arrays.
    return np.memmap(path, dtype, "c") if path.stat().st_size else np.empty(0, dtype)


def starts(sizes: np.ndarray) -> np.ndarray:
    """Where consecutive runs of these sizes begin, and where the last run ends; (runs + 1,) int64."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


class StartsFile:
    """Writes the array of :func:`starts` to a file piece by piece, because for a large corpus it has gigabytes."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")
        self._file.write(np.zeros(1, np.int64).data)
        self._end = 0

    def add(self, sizes: np.ndarray) -> None:
        """The sizes of the next runs."""
        ends = self._end + np.cumsum(sizes, dtype=np.int64)
        self._file.write(ends.data)
        self._end = int(ends[-1]) if len(ends) else self._end

    def close(self) -> None:
        """Close the file, which is then complete."""
        self._file.close()


def map_ids(prefix: Path) -> np.ndarray:
    """Memory-map the token ids of one language of a split that fairseq binarized, (tokens,)."""
    return map_array(Path(f"{prefix}.bin"), MMapIndexedDataset.Index(f"{prefix}.idx").dtype)


class TextFile(NamedTuple):
    """One language of a split in files that several processes memory-map: token ids, and where sentences begin."""

    ids: Path
    dtype: np.dtype
    start: Path

    def map(self) -> Sentences:
        """Memory-map the text."""
        return Sentences(map_array(self.ids, self.dtype), map_array(self.start, np.dtype(np.int64)))


def text_files(split: Split, scratch: Path, name: str = "text") -> Tuple[TextFile, TextFile]:
    """Source and target of a split that fairseq binarized. Where their sentences begin is written to new files
    ``<name>.LANG`` in a scratch folder: in memory it would take 8 bytes a sentence in each process."""
    return _text_file(split, split.source_lang, scratch, name), _text_file(split, split.target_lang, scratch, name)


def _text_file(split: Split, lang: str, scratch: Path, name: str) -> TextFile:
    prefix, start = split.text_prefix(lang), scratch / f"{name}.{lang}"
    index = MMapIndexedDataset.Index(f"{prefix}.idx")
    with name_file_if_disk_full(start), closing(StartsFile(start)) as file:
        for first in range(0, len(index), ROWS_AT_ONCE):
            file.add(index.sizes[first : first + ROWS_AT_ONCE])
    return TextFile(Path(f"{prefix}.bin"), np.dtype(index.dtype), start)


def vocabulary_size(split: Split, lang: str) -> int:
    """The number of types in a language's dictionary, special symbols included; UserError without a dictionary."""
    return len(split.load_dictionary(lang))


def check_split(split: Split) -> None:
    """Raise UserError unless both languages can be read, have equally many sentences, and fit their dictionaries."""
    langs = (split.source_lang, split.target_lang)
    for lang in langs:
        if split.is_text(lang):
            raise UserError(
                f"{split.text_prefix(lang)} is text: binarize it with fairseq-preprocess --dataset-impl mmap"
            )
    lengths = [len(split.load_language(lang)) for lang in langs]
    prefixes = [split.text_prefix(lang) for lang in langs]
    if lengths[0] != lengths[1]:
        raise UserError(
            f"{prefixes[0]}.bin has {lengths[0]} sentences, {prefixes[1]}.bin has {lengths[1]}: "
            f"align the two texts line by line and run fairseq-preprocess again"
        )
    for lang, prefix in zip(langs, prefixes):
        split.check_token_ids(lang, map_ids(prefix), vocabulary_size(split, lang))


def count_types(ids: np.ndarray, size: int) -> np.ndarray:
    """How often each of ``size`` types occurs in a text."""
    counts = np.zeros(size, np.int64)
    for first in range(0, len(ids), ROWS_AT_ONCE):  # in parts: bincount converts each id to eight bytes
        counts += np.bincount(ids[first : first + ROWS_AT_ONCE], minlength=size)
    return counts


def divide_evenly(count: int, parts: int) -> Sequence[Tuple[int, int]]:
    """Divide ``count`` rows into at most ``parts`` consecutive blocks ``(first, last + 1)`` of about equal size."""
    bounds = np.linspace(0, count, max(1, min(parts, count)) + 1).astype(np.int64).tolist()
    return list(zip(bounds[:-1], bounds[1:]))


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

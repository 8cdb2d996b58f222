"""Writing the files of a side stream."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Iterable, Mapping, Optional, Sequence, Type, Union

import numpy as np
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_ctxgates.data.data_directory import digest_of_stream
from fairseq_ctxgates.files import atomic_write_group

Row = Union[np.ndarray, Sequence[int]]  # one-dimensional


class SideStreamWriter:
    """A context manager that writes the rows of a side stream atomically.

    The files are renamed to their final names when the ``with`` block ends, the JSON file last: a stream without its
    JSON file is incomplete, and is refused when it is loaded. No new file is left when the block fails.

    Args:
        prefix: path without extension, from :meth:`Split.stream_prefix`
        dtype: NumPy type of a row's elements
        metadata: JSON object that is stored with the stream; holds ``options`` and ``fingerprint``
    """

    def __init__(self, prefix: Path, dtype: Type[np.generic], metadata: Mapping[str, object]) -> None:
        self.prefix = prefix
        self.metadata = metadata
        self._dtype = dtype
        self._rows = 0
        self._elements = 0

    def __enter__(self) -> SideStreamWriter:
        paths = [Path(f"{self.prefix}{extension}") for extension in (".bin", ".idx", ".json")]
        with ExitStack() as stack:
            self._data, self._index, self._json = stack.enter_context(atomic_write_group(paths))
            self._builder = MMapIndexedDatasetBuilder(str(self._data), dtype=self._dtype)
            self._group = stack.pop_all()
        return self

    def add(self, row: Row) -> None:
        """Append the row of the next sentence, one-dimensional and of any length."""
        self._builder.add_item(torch.from_numpy(np.asarray(row, dtype=self._dtype)))
        self._rows += 1
        self._elements += len(row)

    def __exit__(
        self,
        error_type: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if error_type is not None:
            self._group.__exit__(error_type, error, traceback)
            return
        with self._group:
            self._finish()

    def _finish(self) -> None:
        self._builder.finalize(str(self._index))
        if self._elements == 0:
            # An empty file cannot be memory-mapped, so a stream of empty rows carries one byte that no row points to.
            self._data.write_bytes(b"\0")
        metadata = {
            "rows": self._rows,
            "bytes": {"bin": self._data.stat().st_size, "idx": self._index.stat().st_size},
            **self.metadata,
        }
        metadata = json.loads(json.dumps(metadata))  # as it will be read
        metadata["digest"] = digest_of_stream(self._index, self._data, metadata)
        with open(self._json, "w", encoding="utf-8") as file:
            json.dump(metadata, file, indent=2, sort_keys=True)
            file.write("\n")


def write_side_stream(
    prefix: Path, dtype: Type[np.generic], metadata: Mapping[str, object], rows: Iterable[Row]
) -> None:
    """Write a side stream whose rows are at hand; the arguments are those of :class:`SideStreamWriter`."""
    with SideStreamWriter(prefix, dtype, metadata) as writer:
        for row in rows:
            writer.add(row)

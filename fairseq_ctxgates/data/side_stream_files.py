"""The files of side streams: the rows (``.bin``, ``.idx``), and how they were made (``.json``)."""

from __future__ import annotations

import json
import struct
from array import array
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Type, Union

import numpy as np

from fairseq_ctxgates.compat import MMapIndexedDataset
from fairseq_ctxgates.data.data_directory import ROWS_AT_ONCE, Split, digest_of
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write_group, name_file_if_disk_full, with_name_if_disk_full
from fairseq_ctxgates.locks import exclusive
from fairseq_ctxgates.version import __version__

Row = Union[np.ndarray, Sequence[int]]  # one-dimensional
Metadata = Mapping[str, object]


class SideStreamWriter:
    """Writes the rows of one stream; see :func:`write_side_streams`.

    Args:
        prefix: the path of the stream without extension, for error messages
        files: the files to write: data, index and JSON
    """

    def __init__(self, prefix: Path, files: Sequence[Path], dtype: Type[np.generic], metadata: Metadata) -> None:
        self.prefix, self.metadata = prefix, metadata
        self._data, self._index, self._json = files
        self._dtype = dtype
        self._file = open(self._data, "wb")
        self._sizes = array("i")  # of 32 bits, as in the index

    def add(self, row: Row) -> None:
        """Append the row of the next sentence, one-dimensional and of any length."""
        self.add_all(np.asarray(row, dtype=self._dtype), [len(row)])

    def add_all(self, elements: np.ndarray, sizes: Union[np.ndarray, Sequence[int]]) -> None:
        """Append the rows of the next sentences, one after the other in ``elements``, and of these sizes."""
        if elements.ndim != 1 or np.sum(sizes) != len(elements):
            raise ValueError(f"elements of shape {elements.shape} for rows of {np.sum(sizes)} elements")
        try:
            self._file.write(np.ascontiguousarray(elements, dtype=self._dtype).data)
        except OSError as error:
            raise with_name_if_disk_full(error, self.prefix) from error
        self._sizes.frombytes(np.asarray(sizes, dtype=np.int32).tobytes())

    def close(self) -> None:
        """Close the file that is open until the stream is finished, or until something fails."""
        self._file.close()

    def finish(self) -> None:
        """Write the index and the JSON file."""
        if not any(self._sizes):
            # An empty file cannot be memory-mapped, so a stream of empty rows carries one byte that no row points to.
            self._file.write(b"\0")
        self.close()
        write_index(self._index, self._dtype, np.frombuffer(self._sizes, np.int32))
        metadata = {"rows": len(self._sizes), "version": __version__, **self.metadata}
        metadata["digest"] = digest_of(self._index, self._data, metadata=metadata)
        with open(self._json, "w", encoding="utf-8") as file:
            json.dump(metadata, file, indent=2, sort_keys=True)
            file.write("\n")


def write_index(path: Path, dtype: Type[np.generic], sizes: np.ndarray) -> None:
    """Write the index of memory-mapped rows as fairseq does, but without a Python object for each row.

    Args:
        dtype: NumPy type of a row's elements
        sizes: the number of elements of each row, (rows,) int32
    """
    with MMapIndexedDataset.Index.writer(str(path), dtype):
        pass  # writes the header
    with open(path, "ab") as file:
        file.write(struct.pack("<Q", len(sizes)))
        file.write(sizes.data)
        begin = 0
        for first in range(0, len(sizes), ROWS_AT_ONCE):
            ends = begin + np.cumsum(sizes[first : first + ROWS_AT_ONCE], dtype=np.int64) * np.dtype(dtype).itemsize
            file.write(np.append(begin, ends[:-1]).data)
            begin = int(ends[-1])


@contextmanager
def write_side_streams(
    streams: Mapping[Path, Metadata], dtype: Type[np.generic]
) -> Iterator[Dict[Path, SideStreamWriter]]:
    """Yield the writers of the streams that one run of a command makes, and finish all streams at the end of the block.

    The JSON files are renamed last: a stream without its JSON file is incomplete, and is refused when it is loaded. A
    run that is killed leaves old streams or new ones, never some of each. No new file is left when the block fails.

    Args:
        streams: for each prefix (the path without extension, from :meth:`Split.stream_prefix`), the JSON object that is
            stored with the stream: ``fingerprint``, of the data that it was made for; ``made_from``, if its rows come
            from a file of its own; and what all streams of a run have in common
        dtype: NumPy type of a row's elements
    """
    data = [Path(f"{prefix}.bin") for prefix in streams]
    indices = [Path(f"{prefix}.idx") for prefix in streams]
    marks = [Path(f"{prefix}.json") for prefix in streams]
    with atomic_write_group([*data, *indices], marks) as temporaries, ExitStack() as stack:
        count = len(streams)
        writers = {
            prefix: stack.enter_context(closing(SideStreamWriter(prefix, temporaries[place::count], dtype, metadata)))
            for place, (prefix, metadata) in enumerate(streams.items())
        }
        yield writers
        for writer in writers.values():
            with name_file_if_disk_full(writer.prefix):
                writer.finish()


def write_side_stream(prefix: Path, dtype: Type[np.generic], metadata: Metadata, rows: Iterable[Row]) -> None:
    """Write one stream from its rows; see :func:`write_side_streams`."""
    with write_side_streams({prefix: metadata}, dtype) as writers:
        for row in rows:
            writers[prefix].add(row)


@contextmanager
def lock_streams(name: str, splits: Iterable[Split], command: str) -> Iterator[None]:
    """Let no other process write the streams of this name for the data directories and languages of these splits.

    Raises:
        UserError: another process writes them; the message says which.
    """
    with ExitStack() as stack:
        for lock in sorted({replace(split, name=".lock").stream_prefix(name) for split in splits}):
            stack.enter_context(exclusive(lock, f"{command} is writing to {lock.parent}"))
        yield


def load_metadata(prefix: Path) -> Dict[str, object]:
    """The content of a stream's JSON file; UserError if it cannot be read or is no JSON object."""
    path = f"{prefix}.json"
    try:
        with open(path, encoding="utf-8") as stream:
            metadata = json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error})") from error
    if not isinstance(metadata, dict):
        raise UserError(f"{path} is damaged (it holds no JSON object)")
    return metadata


def verified_metadata(prefix: Path) -> Dict[str, Any]:
    """The content of a stream's JSON file; empty if there is no such stream, or its files are not what was written."""
    try:
        metadata = load_metadata(prefix)
        check_digest(prefix, metadata)
    except (OSError, UserError):
        return {}
    return metadata


def check_digest(prefix: Path, metadata: Metadata) -> None:
    """Raise UserError unless the files are what was written."""
    content = {key: value for key, value in metadata.items() if key != "digest"}
    if "digest" not in metadata:
        raise UserError(f"{prefix}.json has no digest, so an earlier version of this package wrote it")
    if digest_of(Path(f"{prefix}.idx"), Path(f"{prefix}.bin"), metadata=content) != metadata["digest"]:
        raise UserError(f"{prefix}.{{bin,idx,json}} are damaged (their digest has changed since they were written)")


def differing_fields(metadata: Metadata, others: Metadata) -> List[str]:
    """The fields in which two streams differ, among those that the streams of one run have in common."""
    not_shared = {"rows", "fingerprint", "digest", "made_from", "version"}
    keys = {*metadata, *others} - not_shared
    return sorted(key for key in keys if metadata.get(key) != others.get(key))

"""A table of pointwise mutual information (PMI): which words occur together more often than by chance."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Tuple, TypedDict

import numpy as np

from fairseq_ctxgates.context_gates.pmi.kernels import pointwise_mutual_information
from fairseq_ctxgates.context_gates.pmi.sparse_counts import PMICounts
from fairseq_ctxgates.errors import UserError, one_line
from fairseq_ctxgates.files import atomic_write
from fairseq_ctxgates.version import __version__

COUNTS = ("marginal", "frequency")
STRATEGIES = ("max", "mean")
MEASURES = ("pmi", "npmi")
LABEL_COMMAND = "run: ctxgates gate-labels"
PAIRS_READ_AT_ONCE = 1 << 22  # the number of pairs that are looked at together
# The arrays of a stored table, and the types that they may have.
DTYPES = {
    "metadata": ("uint8",),
    "row_counts": ("int64",),
    "column_counts": ("int64",),
    "row_start": ("int64",),
    "columns": ("uint16", "int32"),  # smallest_dtype
    "pair_counts": ("uint32",),
    "total": ("int64",),
}


@dataclass(frozen=True)
class PMIOptions:
    """How words are counted and compared.

    Attributes:
        counts: C(μ) and C(ν) are the marginals of the same table, or the token frequencies in the training data
        strategy: a word's PMI with its context is the maximum over the context words, or the mean over the context
            words that were seen with it
        measure: PMI, or PMI normalized to [-1, 1] (Bouma 2009)
        min_count: pairs with a lower count are treated as unseen; the marginals and Z include them
    """

    counts: str = "marginal"
    strategy: str = "max"
    measure: str = "pmi"
    min_count: int = 1


def table_path(data_dir: Path, name: str, source_lang: str, target_lang: str) -> Path:
    """The path of the ``bilingual`` or ``monolingual`` table of a language pair: ``pmi.bilingual.de-en.npz``."""
    return data_dir / f"pmi.{name}.{source_lang}-{target_lang}.npz"


class StoredArray(NamedTuple):
    """An array to be stored; it comes in pieces because the whole array may not fit in memory."""

    dtype: np.dtype
    length: int
    pieces: Iterable[np.ndarray]

    @classmethod
    def from_array(cls, array: np.ndarray) -> StoredArray:
        """An array of one piece."""
        return cls(array.dtype, len(array), [array])


class Provenance(TypedDict):
    """Digests of the data that a table was counted on.

    Attributes:
        dictionaries: of the ``source`` and of the ``target`` dictionary
        train: for each split of the training data, a fingerprint for each data directory
    """

    dictionaries: Dict[str, str]
    train: Dict[str, List[Dict[str, str]]]


class TableMetadata(Provenance):
    """The provenance of a table, the fields of its :class:`PMIOptions`, and the version of this package that made it,
    which the earliest tables do not have."""

    options: Dict[str, Any]
    version: str


class PMITable:
    """Pointwise mutual information of words with the words of one context (equation 6).

    Attributes:
        counts: see :class:`PMICounts`
        options: how the words were counted
        metadata: the options, and the provenance of the counts
    """

    def __init__(self, counts: PMICounts, metadata: TableMetadata) -> None:
        self.counts = counts
        self.metadata = metadata
        self.options = PMIOptions(**metadata["options"])

    def __len__(self) -> int:
        """The number of distinct pairs."""
        return len(self.counts.columns)

    @property
    def shape(self) -> Tuple[int, int]:
        """The number of target types and of context types."""
        return len(self.counts.row_counts), len(self.counts.column_counts)

    @property
    def total(self) -> int:
        """Z: the sum of all pair counts."""
        return int(self.counts.total[0])

    @property
    def normalized(self) -> bool:
        return self.options.measure == "npmi"

    def strongest(self, limit: int, min_count: int) -> List[Tuple[int, int, float, int]]:
        """The pairs with the highest PMI, of the pairs with a count of at least ``min_count``.

        Returns:
            at most ``limit`` tuples (word, context word, PMI, count), highest PMI first
        """
        best, values = np.empty(0, np.int64), np.empty(0)
        for first in range(0, len(self), PAIRS_READ_AT_ONCE):
            frequent = first + np.flatnonzero(self.counts.pair_counts[first : first + PAIRS_READ_AT_ONCE] >= min_count)
            best, values = np.append(best, frequent), np.append(values, self._pmi_at(frequent))
            order = np.lexsort((best, -self.counts.pair_counts[best].astype(np.int64), -values))[:limit]
            best, values = best[order], values[order]
        return list(
            zip(
                self._rows_of(best).tolist(),
                self.counts.columns[best].tolist(),
                values.tolist(),
                self.counts.pair_counts[best].tolist(),
            )
        )

    def _rows_of(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.counts.row_start, places, side="right") - 1

    def _pmi_at(self, places: np.ndarray) -> np.ndarray:
        rows, columns = self._rows_of(places), self.counts.columns[places]
        return pointwise_mutual_information(
            self.counts.pair_counts[places].astype(np.float64),
            self.counts.row_counts[rows].astype(np.float64),
            self.counts.column_counts[columns].astype(np.float64),
            float(self.total),
            self.normalized,
        )

    @classmethod
    def load(cls, path: Path, verify: bool = True) -> PMITable:
        """Memory-map a stored table.

        Args:
            verify: read the whole file, and check its checksums and all pairs

        Raises:
            UserError: the file is missing or damaged, or its arrays do not make a table (which is checked because
                compiled code reads them without checks)
        """
        if not path.exists():
            raise UserError(
                f"{path} not found; {LABEL_COMMAND} (of several data directories, a:b, the first has the tables)"
            )
        try:
            arrays = map_npz(path, verify)
            metadata = json.loads(arrays.pop("metadata").tobytes().decode("utf-8"))
            counts = PMICounts(**arrays)
            check_rows(counts)
            if verify:
                check_pairs(counts)
            if not is_metadata(metadata):
                raise ValueError("its metadata are not those of a table")
            if metadata.pop("file", path.name) != path.name:
                raise ValueError("it is another table under this name")
            return cls(counts, metadata)
        except (OSError, EOFError, ValueError, TypeError, struct.error, zipfile.BadZipFile, RuntimeError) as error:
            raise UserError(f"{path} is damaged ({one_line(error) or 'it is cut'}); {LABEL_COMMAND}") from error


def is_metadata(content: Any) -> bool:
    """Whether JSON is :class:`TableMetadata`."""
    return (
        isinstance(content, dict)
        and all(isinstance(content.get(part), dict) for part in ("options", "dictionaries", "train"))
        and all(isinstance(digests, list) for digests in content["train"].values())
    )


def check_rows(counts: PMICounts) -> None:
    """Raise ValueError unless the arrays have the lengths of one table, and each row begins where the last one ends."""
    if len(counts.total) != 1:
        raise ValueError(f"total has {len(counts.total)} numbers")
    if len(counts.row_start) != len(counts.row_counts) + 1:
        raise ValueError(f"row_start has {len(counts.row_start)} numbers for {len(counts.row_counts)} rows")
    if len(counts.columns) != len(counts.pair_counts):
        raise ValueError(f"{len(counts.columns)} columns for {len(counts.pair_counts)} pair_counts")
    is_ordered = np.all(counts.row_start[:-1] <= counts.row_start[1:])  # differences could overflow
    if not is_ordered or (counts.row_start[0], counts.row_start[-1]) != (0, len(counts.columns)):
        raise ValueError(f"row_start does not divide {len(counts.columns)} pairs into rows")


def check_pairs(counts: PMICounts) -> None:
    """Raise ValueError unless each pair has a column of the table, and its count and those of its row and column are
    above 0."""
    if np.any(counts.row_counts[counts.row_start[:-1] < counts.row_start[1:]] < 1):
        raise ValueError("a row with pairs has no row_counts")
    for first in range(0, len(counts.columns), PAIRS_READ_AT_ONCE):
        part = slice(first, first + PAIRS_READ_AT_ONCE)
        columns = counts.columns[part]
        if not 0 <= columns.min() <= columns.max() < len(counts.column_counts):
            raise ValueError(f"columns has {columns.min()} to {columns.max()} of {len(counts.column_counts)} columns")
        if counts.pair_counts[part].min() < 1 or counts.column_counts[columns].min() < 1:
            raise ValueError("a pair has no pair_counts or column_counts")


def save_table(
    path: Path, total: int, arrays: Mapping[str, StoredArray], options: PMIOptions, provenance: Provenance
) -> None:
    """Write a table atomically as ``.npz``, with the arrays of :class:`PMICounts` and the metadata as its members."""
    metadata = {"options": asdict(options), "version": __version__, "file": path.name, **provenance}
    text = json.dumps(metadata, sort_keys=True)
    members = {
        "metadata": StoredArray.from_array(np.frombuffer(text.encode("utf-8"), np.uint8)),
        "total": StoredArray.from_array(np.array([total], np.int64)),
        **arrays,
    }
    with atomic_write(path) as temporary:
        write_npz(temporary, members)


def write_npz(path: Path, arrays: Mapping[str, StoredArray]) -> None:
    """Write ``.npz`` as ``numpy.savez`` does, with each array aligned to 64 bytes so that it can be memory-mapped."""
    with open(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            # A local header has 30 bytes, the name, this padding (an extra field that readers skip), and 20 for zip64.
            info = zipfile.ZipInfo(f"{name}.npy")
            padding = -(file.tell() + 30 + len(info.filename) + 4 + 20) % 64
            info.extra = struct.pack("<HH", 0xD935, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=True) as member:
                header = {"descr": array.dtype.str, "fortran_order": False, "shape": (array.length,)}
                np.lib.format.write_array_header_1_0(member, header)
                for piece in array.pieces:
                    # As bytes: Python 3.8 takes the number of elements for that of bytes.
                    member.write(piece.astype(array.dtype, copy=False).view(np.uint8).data)


def map_npz(path: Path, verify: bool) -> Dict[str, np.ndarray]:
    """Memory-map the arrays of a table; a damaged file, or another one, raises OSError, EOFError, ValueError,
    struct.error, BadZipFile or RuntimeError."""
    arrays = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        if sorted(archive.namelist()) != sorted(f"{name}.npy" for name in DTYPES):
            raise ValueError(f"it holds {', '.join(archive.namelist())}")
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("its arrays are compressed")
        if verify and archive.testzip() is not None:
            raise ValueError(f"wrong checksum of {archive.testzip()}")
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
            begin = file.tell()
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"{info.filename} is not an array of format 1.0")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            name = Path(info.filename).stem
            if len(shape) != 1 or dtype not in DTYPES[name]:
                raise ValueError(f"{name} is an array of {dtype} and shape {shape}")
            if info.file_size != file.tell() - begin + shape[0] * dtype.itemsize:
                raise ValueError(f"{name} has {info.file_size} bytes for {shape[0]} numbers")
            arrays[name] = np.memmap(path, dtype, "c", file.tell(), shape) if shape[0] else np.empty(shape, dtype)
    return arrays

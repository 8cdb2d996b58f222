"""A table of pointwise mutual information: which words are found together more often than chance would have it."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

import numpy as np

from fairseq_ctxgates.context_gates.pmi.kernels import find_pairs, pointwise_mutual_information
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write

COUNTS = ("marginal", "frequency")
STRATEGIES = ("max", "mean")
MEASURES = ("pmi", "npmi")
REMEDY = "run: ctxgates gate-labels"


@dataclass(frozen=True)
class PMIOptions:
    """How words are counted and compared.

    counts: what C(μ) and C(ν) are: the marginals of the same table, or the numbers of tokens in the training data
    strategy: a word's PMI with its context is the maximum over the context's words, or the mean over those seen with it
    measure: PMI, or PMI normalized to [-1, 1] (Bouma 2009)
    min_count: pairs that were counted less often are taken as unseen; they still count in the marginals and in Z
    """

    counts: str = "marginal"
    strategy: str = "max"
    measure: str = "pmi"
    min_count: int = 1


def table_path(data_dir: Path, name: str, source_lang: str, target_lang: str) -> Path:
    """Where the table ``bilingual`` or ``monolingual`` of a language pair lies: ``pmi.bilingual.de-en.npz``."""
    return data_dir / f"pmi.{name}.{source_lang}-{target_lang}.npz"


class Member(NamedTuple):
    """An array to be stored, which comes in pieces because it may not fit in memory as a whole."""

    dtype: Any
    length: int
    pieces: Iterable[np.ndarray]

    @classmethod
    def of(cls, array: np.ndarray) -> Member:
        return cls(array.dtype, len(array), [array])


class PMICounts(NamedTuple):
    """C of equation 6, in compressed sparse rows with their marginals. The arrays are memory-mapped.

    A row is the target word μ = y whose label is wanted. A column is a word ν of its context: a source word x in the
    bilingual table, a preceding target word y' in the monolingual one.

    row_counts (target types), column_counts (context types): C(μ) and C(ν)
    row_start (target types + 1): where each row begins in the two that follow
    columns (pairs): the context types of a row, in the order in which they were first found with it
    pair_counts (pairs): C(μ, ν)
    total (1): Z
    """

    row_counts: np.ndarray
    column_counts: np.ndarray
    row_start: np.ndarray
    columns: np.ndarray
    pair_counts: np.ndarray
    total: np.ndarray


class PMITable:
    """Pointwise mutual information of words with the words of one context (equation 6).

    Attributes:
        counts: see :class:`PMICounts`
        options: how it was made
        metadata: what it was made of
    """

    def __init__(self, counts: PMICounts, metadata: Dict[str, Any]) -> None:
        self.counts = counts
        self.metadata = metadata
        self.options = PMIOptions(**metadata["options"])

    def __len__(self) -> int:
        """The number of distinct pairs."""
        return len(self.counts.columns)

    @property
    def total(self) -> int:
        """Z: how many pairs were counted."""
        return int(self.counts.total[0])

    @property
    def normalized(self) -> bool:
        return self.options.measure == "npmi"

    def pmi(self, words: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        """PMI of ``words[n]`` with ``contexts[n]`` for every n, −∞ for a pair that was not seen. float64."""
        words, contexts = np.asarray(words), np.asarray(contexts)
        places = find_pairs(words, contexts, self.counts)
        values = np.full(len(places), -np.inf)
        values[places >= 0] = self._pmi_at(places[places >= 0])
        return values

    def strongest(self, number: int, least_count: int) -> List[Tuple[int, int, float, int]]:
        """The pairs of highest PMI among those counted ``least_count`` times or more.

        Returns:
            at most ``number`` tuples (word, context word, PMI, count), best first
        """
        best, values = np.empty(0, np.int64), np.empty(0)
        for first in range(0, len(self), 1 << 22):
            block = first + np.flatnonzero(self.counts.pair_counts[first : first + (1 << 22)] >= least_count)
            best, values = np.append(best, block), np.append(values, self._pmi_at(block))
            order = np.lexsort((best, -self.counts.pair_counts[best].astype(np.int64), -values))[:number]
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
        """Map a stored table into memory.

        Args:
            verify: read it once to see that it is undamaged

        Raises:
            UserError: the file is missing or damaged
        """
        if not path.exists():
            raise UserError(f"{path} not found; {REMEDY}")
        try:
            arrays = map_npz(path, verify)
            metadata = json.loads(arrays.pop("metadata").tobytes().decode("utf-8"))
            return cls(PMICounts(**arrays), metadata)
        except (OSError, ValueError, KeyError, TypeError, struct.error, zipfile.BadZipFile) as error:
            raise UserError(f"{path} is damaged ({error}); {REMEDY}") from error


def save_table(
    path: Path, total: int, members: Dict[str, Member], options: PMIOptions, metadata: Dict[str, Any]
) -> None:
    """Write a table as ``.npz``, the arrays of :class:`PMITable` being its members. The file appears under its name
    when it is complete."""
    text = json.dumps({"options": asdict(options), **metadata}, sort_keys=True)
    members = {
        "metadata": Member.of(np.frombuffer(text.encode("utf-8"), np.uint8)),
        "total": Member.of(np.array([total], np.int64)),
        **members,
    }
    with atomic_write(path) as temporary:
        write_npz(temporary, members)


def write_npz(path: Path, members: Dict[str, Member]) -> None:
    """What ``numpy.savez`` writes, from arrays that come in pieces, each put where it can be memory-mapped."""
    with open(path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, member in members.items():
            # A local header has 30 bytes, the name, this padding (an extra field that readers skip), and 20 for zip64.
            info = zipfile.ZipInfo(f"{name}.npy")
            padding = -(file.tell() + 30 + len(info.filename) + 4 + 20) % 64
            info.extra = struct.pack("<HH", 0xD935, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=True) as stream:
                header = {"descr": np.dtype(member.dtype).str, "fortran_order": False, "shape": (member.length,)}
                np.lib.format.write_array_header_1_0(stream, header)
                for piece in member.pieces:
                    stream.write(piece.astype(member.dtype, copy=False).data)


def map_npz(path: Path, verify: bool) -> Dict[str, np.ndarray]:
    """The arrays of an uncompressed ``.npz``, memory-mapped; ValueError or BadZipFile when it is damaged."""
    arrays = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        if verify and archive.testzip() is not None:
            raise ValueError(f"wrong checksum of {archive.testzip()}")
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"{info.filename} is no array of format 1.0")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            array = np.memmap(path, dtype, "c", file.tell(), shape) if shape[0] else np.empty(shape, dtype)
            arrays[Path(info.filename).stem] = array
    return arrays

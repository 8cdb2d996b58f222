"""The data directory that fairseq-preprocess writes: its splits, the rows of each language, and their fingerprints."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Union

import numpy as np
from fairseq.data import Dictionary, IndexedRawTextDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset, infer_dataset_impl

from fairseq_ctxgates.errors import UserError


@dataclass(frozen=True)
class Split:
    """One split of a data directory, in the direction of training.

    The text may have been binarized in the other direction.
    """

    data_dir: Path
    name: str
    source_lang: str
    target_lang: str

    def text_prefix(self, lang: str) -> Path:
        """The path of one language's data without ``.bin`` or ``.idx``; with ``--dataset-impl raw`` the text file.

        Raises:
            UserError: the split does not exist
        """
        pairs = (f"{self.source_lang}-{self.target_lang}", f"{self.target_lang}-{self.source_lang}")
        for pair in pairs:
            prefix = self.data_dir / f"{self.name}.{pair}.{lang}"
            if Path(f"{prefix}.idx").exists() or prefix.exists():
                return prefix
        raise UserError(
            f"{self.data_dir}/{self.name}.{pairs[0]}.{lang}.idx not found (nor {self.name}.{pairs[1]}.{lang}.idx): "
            f"check --source-lang and --target-lang, or run fairseq-preprocess first"
        )

    def dictionary_path(self, lang: str) -> Path:
        """The path of one language's dictionary; UserError when the file does not exist."""
        path = self.data_dir / f"dict.{lang}.txt"
        if not path.exists():
            raise UserError(f"{path} not found: copy the file that fairseq-preprocess wrote beside the data")
        return path

    def is_text(self, lang: str) -> bool:
        """Whether one language's data are a text file (``--dataset-impl raw``) and not binarized."""
        return not Path(f"{self.text_prefix(lang)}.idx").exists()

    def load_language(self, lang: str) -> Union[MMapIndexedDataset, IndexedRawTextDataset]:
        """The token ids of one language's sentences; binarized data are memory-mapped.

        Raises:
            UserError: the files are empty, truncated, or have another ``--dataset-impl`` than mmap or raw
        """
        prefix = self.text_prefix(lang)
        if self.is_text(lang):
            return IndexedRawTextDataset(str(prefix), Dictionary.load(str(self.dictionary_path(lang))))
        rows = load_rows(prefix)
        if len(rows) == 0:
            raise UserError(f"{prefix}.bin holds no sentence: was the text file empty?")
        return rows

    def stream_prefix(self, stream_name: str) -> Path:
        """The path of a side stream without extension, named like fairseq's alignments: ``train.gate.de-en``."""
        return self.data_dir / f"{self.name}.{stream_name}.{self.source_lang}-{self.target_lang}"


def find_splits(data_dir: Path, source_lang: str, target_lang: str) -> List[Split]:
    """All splits of a language pair in a data directory, ``train`` first.

    Raises:
        UserError: the directory does not exist, or has no data of the language pair
    """
    if not data_dir.is_dir():
        raise UserError(f"{data_dir} is not a directory: give the --destdir of fairseq-preprocess")
    pattern = re.compile(
        rf"(?P<name>[^.]+)\.(?:{re.escape(source_lang)}-{re.escape(target_lang)}|"
        rf"{re.escape(target_lang)}-{re.escape(source_lang)})\.{re.escape(source_lang)}(?:\.idx)?"
    )
    matches = (pattern.fullmatch(path.name) for path in data_dir.iterdir())
    names = sorted({match["name"] for match in matches if match}, key=lambda name: (not name.startswith("train"), name))
    if not names:
        raise UserError(
            f"{data_dir} holds no data of the language pair {source_lang}-{target_lang}: "
            f"check --source-lang and --target-lang"
        )
    return [Split(data_dir, name, source_lang, target_lang) for name in names]


def load_rows(prefix: Path) -> MMapIndexedDataset:
    """Memory-map ``<prefix>.bin`` and ``<prefix>.idx``.

    Raises:
        UserError: a file is missing, damaged or truncated, or the split has no sentence
    """
    index_path, data_path = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index_path, data_path):
        if not path.exists():
            raise UserError(f"{path} not found: make it again")
    if infer_dataset_impl(str(prefix)) != "mmap":
        raise UserError(
            f"{index_path} is not a memory-mapped index: binarize with fairseq-preprocess --dataset-impl mmap"
        )
    try:
        index = MMapIndexedDataset.Index(str(index_path))
    except (AssertionError, ValueError, KeyError, struct.error) as error:
        raise UserError(f"{index_path} is damaged ({error}): make it again") from error
    if not np.issubdtype(index.dtype, np.integer) or np.any(index.sizes < 0):
        raise UserError(f"{index_path} is damaged (its rows have no lengths): make it again")
    expected = int(index.sizes.sum(dtype=np.int64)) * np.dtype(index.dtype).itemsize
    found = data_path.stat().st_size
    if found < expected:
        raise UserError(f"{data_path} is truncated: {found} bytes where its index needs {expected}; make it again")
    if found == 0:
        raise UserError(f"{data_path} is empty: was the text file empty?")
    return MMapIndexedDataset(str(prefix))


def fingerprint(split: Split, languages: Sequence[str] = ("source", "target")) -> Dict[str, str]:
    """Digests of a split's data, equal when the token ids and the dictionaries are equal.

    Args:
        languages: ``"source"``, ``"target"``, or both

    Returns:
        for ``"source"`` and ``"target"`` a digest of the dictionary, the index and the data
    """
    digests = {}
    for role in languages:
        lang = split.source_lang if role == "source" else split.target_lang
        prefix = split.text_prefix(lang)
        data = [prefix] if split.is_text(lang) else [Path(f"{prefix}.idx"), Path(f"{prefix}.bin")]
        digests[role] = digest_of_files([split.dictionary_path(lang), *data])
    return digests


def digest_of_files(paths: Sequence[Path], first: bytes = b"") -> str:
    """A digest of bytes, and of the content of files one after another."""
    digest = hashlib.blake2b(first, digest_size=16)
    for path in paths:
        with open(path, "rb") as file:
            for chunk in iter(lambda: file.read(1 << 20), b""):
                digest.update(chunk)
    return digest.hexdigest()


def digest_of_stream(index: Path, data: Path, metadata: Mapping[str, Any]) -> str:
    """A digest of the files of a side stream: of its index, its data, and all in its JSON file but this digest."""
    rest = {name: value for name, value in metadata.items() if name != "digest"}
    return digest_of_files([index, data], json.dumps(rest, sort_keys=True).encode())

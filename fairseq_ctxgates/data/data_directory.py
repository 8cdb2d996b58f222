"""The data directory that fairseq-preprocess writes: its splits, the rows of each language, and their fingerprints."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
from fairseq import utils
from fairseq.data import Dictionary, IndexedRawTextDataset

from fairseq_ctxgates.compat import MMapIndexedDataset, infer_dataset_impl
from fairseq_ctxgates.errors import UserError, one_line

TEXT_FILE = re.compile(r"[^.]+\.(?P<pair>[^.]+)\.(?P<lang>[^.]+)(?:\.(?:idx|bin))?")  # the data of one language
ROWS_AT_ONCE = 1 << 20  # how many rows of an index are checked at a time
PAD, EOS, UNK = Dictionary().pad(), Dictionary().eos(), Dictionary().unk()
PADDING_IN_TEXT = (
    "the text has the word <pad>, with which fairseq pads batches (grep -nF '<pad>' finds it): write it another way, "
    "and run fairseq-preprocess again"
)


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
        prefix = self._find_text(lang)
        if prefix is None:
            if not any(map(self._find_text, (self.source_lang, self.target_lang))):
                find_split(self.data_dir, self.name, self.source_lang, self.target_lang)  # raises, naming the splits
            first, second = self._text_prefixes(lang)
            raise UserError(
                f"{first}.idx not found (nor {second.name}.idx): "
                f"check --source-lang and --target-lang, or run fairseq-preprocess first"
            )
        return prefix

    def has(self, lang: str) -> bool:
        """Whether the split has data of a language."""
        return self._find_text(lang) is not None

    def _find_text(self, lang: str) -> Optional[Path]:
        found = (path for path in self._text_prefixes(lang) if Path(f"{path}.idx").exists() or path.exists())
        return next(found, None)

    def has_target(self) -> bool:
        """Whether there is any file of the target, even without its index: a test set that was binarized with
        ``--only-source`` has none."""
        prefixes = self._text_prefixes(self.target_lang)
        return any(Path(f"{prefix}{end}").exists() for prefix in prefixes for end in ("", ".bin", ".idx"))

    def _text_prefixes(self, lang: str) -> List[Path]:
        """Where the data of one language may be: binarized in the direction of training, or in the other direction."""
        pairs = (f"{self.source_lang}-{self.target_lang}", f"{self.target_lang}-{self.source_lang}")
        return [self.data_dir / f"{self.name}.{pair}.{lang}" for pair in pairs]

    def dictionary_path(self, lang: str) -> Path:
        """The path of one language's dictionary; UserError when the file does not exist."""
        path = self.data_dir / f"dict.{lang}.txt"
        if not path.exists():
            raise UserError(f"{path} not found: copy the file that fairseq-preprocess wrote beside the data")
        return path

    def load_dictionary(self, lang: str) -> Dictionary:
        """One language's dictionary; UserError when the file does not exist or is damaged."""
        return load_dictionary(self.dictionary_path(lang))

    def is_text(self, lang: str) -> bool:
        """Whether one language's data are a text file (``--dataset-impl raw``) and not binarized."""
        return not Path(f"{self.text_prefix(lang)}.idx").exists()

    def load_language(self, lang: str) -> Union[MMapIndexedDataset, IndexedRawTextDataset]:
        """The token ids of one language's sentences; binarized data are memory-mapped.

        Raises:
            UserError: the files are empty, truncated, or have a ``--dataset-impl`` other than mmap or raw
        """
        prefix = self.text_prefix(lang)
        rows = load_text(prefix, self.load_dictionary(lang)) if self.is_text(lang) else load_rows(prefix)
        if len(rows) == 0:
            raise UserError(f"{prefix} holds no sentence: was the text file empty?")
        return rows

    def check_token_ids(self, lang: str, ids: np.ndarray, types: int) -> None:
        """Raise UserError if a token id of one language's data, (tokens,), is not in a dictionary with this number of
        types, or is that of padding, which batches have after or before a sentence, never within it."""
        wrong = next((token for token in (ids.min(), ids.max()) if not 0 <= token < types), None)
        if wrong is not None:
            raise UserError(
                f"{self.text_prefix(lang)}.bin holds the token id {wrong}, but {self.dictionary_path(lang)} has "
                f"{types} types: use the dictionary that the text was binarized with"
            )
        if any(np.any(ids[first : first + ROWS_AT_ONCE] == PAD) for first in range(0, len(ids), ROWS_AT_ONCE)):
            raise UserError(f"{self.text_prefix(lang)}.bin: {PADDING_IN_TEXT}")

    def stream_prefix(self, stream_name: str) -> Path:
        """The path of a side stream without extension, named like fairseq's alignments: ``train.gate.de-en``."""
        return self.data_dir / f"{self.name}.{stream_name}.{self.source_lang}-{self.target_lang}"


def load_dictionary(path: Path) -> Dictionary:
    """A dictionary; UserError when the file is damaged."""
    try:
        return Dictionary.load(str(path))
    except Exception as error:  # fairseq raises all kinds, and Exception itself if the text is not UTF-8
        raise UserError(
            f"{path} is damaged ({one_line(error)}): copy the file that fairseq-preprocess wrote"
        ) from error


def find_language_pairs(data_dir: Path) -> List[Tuple[str, str]]:
    """The language pairs of the data in a directory, in the direction in which they were binarized, sorted. Unlike
    fairseq's own search, it finds all of them, and languages with a hyphen too.

    Raises:
        UserError: the directory does not exist, or has no data of any language pair
    """
    pairs = set()
    for match in filter(None, map(TEXT_FILE.fullmatch, _file_names(data_dir))):
        pair, lang = match["pair"], match["lang"]
        if pair.startswith(f"{lang}-"):
            pairs.add((lang, pair[len(lang) + 1 :]))
        elif pair.endswith(f"-{lang}"):
            pairs.add((pair[: -len(lang) - 1], lang))
    if not pairs:
        raise UserError(f"{data_dir} holds no data of any language pair: give the --destdir of fairseq-preprocess")
    return sorted(pairs)


def find_splits(data_dir: Path, source_lang: str, target_lang: str) -> List[Split]:
    """All splits of a language pair in a data directory, ``train`` first.

    Raises:
        UserError: the directory does not exist, or has no data of the language pair
    """
    pattern = re.compile(
        rf"(?P<name>[^.]+)\.(?:{re.escape(source_lang)}-{re.escape(target_lang)}|"
        rf"{re.escape(target_lang)}-{re.escape(source_lang)})\.{re.escape(source_lang)}(?:\.idx)?"
    )
    matches = map(pattern.fullmatch, _file_names(data_dir))
    names = sorted({match["name"] for match in matches if match}, key=lambda name: (not name.startswith("train"), name))
    if not names:
        raise UserError(
            f"{data_dir} holds no data of the language pair {source_lang}-{target_lang}: "
            f"check --source-lang and --target-lang"
        )
    return [Split(data_dir, name, source_lang, target_lang) for name in names]


def _file_names(data_dir: Path) -> List[str]:
    if not data_dir.is_dir():
        raise UserError(f"{data_dir} is not a directory: give the --destdir of fairseq-preprocess")
    return [path.name for path in data_dir.iterdir()]


def find_split(data_dir: Path, name: str, source_lang: str, target_lang: str) -> Split:
    """A split of a data directory.

    Raises:
        UserError: the directory or the split does not exist; the message names the splits of the directory.
    """
    splits = {split.name: split for split in find_splits(data_dir, source_lang, target_lang)}
    if name not in splits:
        raise UserError(f"{data_dir} has no split {name!r} of {source_lang}-{target_lang}: it has {', '.join(splits)}")
    return splits[name]


def first_data_dir(data: str) -> Path:
    """The first of the data directories that an argument names (``a:b``)."""
    return Path(utils.split_paths(data)[0])


class _Index(MMapIndexedDataset.Index):
    """fairseq's index, without a second error when the file that it opens is damaged."""

    def __del__(self) -> None:
        if hasattr(self, "_bin_buffer_mmap"):
            super().__del__()


def load_text(path: Path, dictionary: Dictionary) -> IndexedRawTextDataset:
    """The sentences of a text; UserError when it is not UTF-8."""
    try:
        return IndexedRawTextDataset(str(path), dictionary)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason}): convert the file") from error


def load_rows(prefix: Path) -> MMapIndexedDataset:
    """Memory-map ``<prefix>.bin`` and ``<prefix>.idx``.

    Raises:
        UserError: a file is missing, damaged or truncated, or the split has no sentence
    """
    index_path, data_path = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index_path, data_path):
        if not path.is_file():
            raise UserError(f"{path} {'is a folder' if path.is_dir() else 'not found'}: make it again")
    implementation = infer_dataset_impl(str(prefix))
    if implementation == "raw":
        raise UserError(f"{prefix} is text beside {index_path}, and fairseq reads the text: remove one of the two")
    if implementation != "mmap":
        raise UserError(
            f"{index_path} is not a memory-mapped index: binarize with fairseq-preprocess --dataset-impl mmap"
        )
    try:
        index = _Index(str(index_path))
    except (AssertionError, ValueError, KeyError, OverflowError, struct.error) as error:
        raise UserError(f"{index_path} is damaged ({one_line(error)}): make it again") from error
    if not np.issubdtype(index.dtype, np.integer) or np.any(index.sizes < 0):
        raise UserError(f"{index_path} is damaged (its rows have no lengths): make it again")
    expected, found = 0, data_path.stat().st_size
    for first in range(0, len(index), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        ends = expected + np.cumsum(index.sizes[part], dtype=np.int64) * np.dtype(index.dtype).itemsize
        if not np.array_equal(index._pointers[part], np.append(expected, ends[:-1])):
            raise UserError(f"{index_path} is damaged (its rows do not follow each other): make it again")
        expected = int(ends[-1])
    if found == 0:
        raise UserError(f"{data_path} is empty: was the text file empty?")
    if found != max(expected, 1):
        problem = "is truncated" if found < expected else "is longer than its index says"
        raise UserError(f"{data_path} {problem}: {found} bytes where it should have {expected}; make it again")
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
        digests[role] = digest_of(split.dictionary_path(lang), *data)
    return digests


def digest_of(*paths: Path, metadata: Optional[Mapping[str, object]] = None) -> str:
    """A digest of the content of files, one after the other, and of a JSON object."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        with open(path, "rb") as file:
            for chunk in iter(partial(file.read, 1 << 20), b""):
                digest.update(chunk)
    if metadata is not None:
        digest.update(json.dumps(metadata, sort_keys=True).encode("utf-8"))
    return digest.hexdigest()

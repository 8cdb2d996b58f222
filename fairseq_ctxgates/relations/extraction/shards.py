"""Extraction of relation tuples in shards, which are kept until all shards are finished.

A shard is a list of row numbers, and a file for the tuples of their sentences. A worker reads the data by path, so that
no large data are sent to it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.files import atomic_write
from fairseq_ctxgates.relations.extraction.build import build_extractor
from fairseq_ctxgates.relations.extraction.corpus import SourceText
from fairseq_ctxgates.relations.extraction.extractor import RelationExtractor, RelationTuple

SHARD_SENTENCES = 250
FORMAT = 1  # version of the shard files and of the extraction; shards of another version are not reused


@dataclass(frozen=True)
class ExtractionOptions:
    """The options that the tuples of a sentence depend on.

    properties: names and values of additional CoreNLP properties
    """

    extractor: str
    language: str
    remove_bpe: str
    properties: Tuple[Tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ServerOptions:
    """The CoreNLP servers, which the tuples do not depend on; see :func:`build_extractor`."""

    urls: Tuple[str, ...] = ()
    memory: str = "4G"
    timeout: float = 60


@dataclass(frozen=True)
class Shard:
    """A unit of work: sentences whose tuples are extracted.

    path: file for the result
    splits: splits with the sentences
    fingerprint: digest of the data and the options, see :func:`extraction_fingerprint`
    places: for each sentence the number of its split and its row, (sentences, 2)
    """

    path: Path
    splits: Tuple[Split, ...]
    fingerprint: str
    places: np.ndarray
    options: ExtractionOptions
    server_options: ServerOptions


def extraction_fingerprint(
    splits: Sequence[Split], digests: Sequence[Dict[str, str]], options: ExtractionOptions
) -> str:
    """A digest of everything that the content of the shards depends on.

    Args:
        digests: the fingerprint of each split's source language
    """
    data = [[split.name, digest] for split, digest in zip(splits, digests)]
    content = json.dumps([FORMAT, SHARD_SENTENCES, asdict(options), data], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def shard_folder(splits: Sequence[Split], fingerprint: str) -> Path:
    """The folder of the shards with this fingerprint, in the first data directory."""
    first = splits[0]
    return first.data_dir / f".relation.{first.source_lang}-{first.target_lang}.{fingerprint}"


class ExtractedTuples:
    """The tuples of each distinct sentence by its number, read from the files of the finished shards."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._lines = lru_cache(maxsize=256)(self._read)  # a repeated sentence may be in any shard

    def _read(self, shard: int) -> List[bytes]:
        return self._paths[shard].read_bytes().splitlines()

    def __getitem__(self, number: int) -> Optional[List[RelationTuple]]:
        shard, line = divmod(int(number), SHARD_SENTENCES)
        tuples = json.loads(self._lines(shard)[line])
        return None if tuples is None else [RelationTuple(*parts) for parts in tuples]


def extract_distinct_sentences(
    splits: Sequence[Split],
    places: np.ndarray,
    fingerprint: str,
    options: ExtractionOptions,
    server_options: ServerOptions,
    executor: Optional[Executor],
) -> ExtractedTuples:
    """Extract the tuples of distinct sentences, with a progress bar.

    The finished shards of an interrupted run are reused. The caller removes the folder with :func:`remove_shards`.

    Args:
        places: see :func:`find_distinct_sentences`

    Raises:
        UserError: the extractor no longer runs
    """
    # Absolute paths: another process may have another working directory.
    splits = tuple(replace(split, data_dir=split.data_dir.absolute()) for split in splits)
    folder = shard_folder(splits, fingerprint)
    folder.mkdir(exist_ok=True)
    shards = [
        Shard(folder / f"{first:010}", splits, fingerprint, rows, options, server_options)
        for first in range(0, len(places), SHARD_SENTENCES)
        for rows in [places[first : first + SHARD_SENTENCES]]
    ]
    missing = [shard for shard in shards if not shard.path.exists()]
    if missing and (executor is None or isinstance(executor, ThreadPoolExecutor)):
        print(f"preparing {options.extractor}", file=sys.stderr)
        get_extractor(options, server_options)  # before the progress bar starts to measure time
    done = len(places) - sum(len(shard.places) for shard in missing)
    with tqdm(total=len(places), initial=done, desc="extracting", unit=" sentences", smoothing=0.1) as bar:
        for number in run_shards(missing, executor):
            bar.update(number)
    return ExtractedTuples([shard.path for shard in shards])


def run_shards(shards: Sequence[Shard], executor: Optional[Executor]) -> Iterator[int]:
    """The number of sentences of each shard, as soon as the shard is finished."""
    if executor is None:
        yield from map(extract_shard, shards)
        return
    futures = [executor.submit(extract_shard, shard) for shard in shards]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def extract_shard(shard: Shard) -> int:
    """Extract the tuples of a shard's sentences, and write them atomically: a shard may run twice.

    The file has one line of JSON for each sentence, ``null`` for a sentence that could not be parsed.

    Returns:
        the number of sentences
    """
    texts = open_texts(shard.splits, shard.options.remove_bpe, shard.fingerprint)
    sentences = [texts[split][row].words for split, row in shard.places.tolist()]
    tuples = get_extractor(shard.options, shard.server_options).extract_tuples(sentences)
    with atomic_write(shard.path) as temporary:
        temporary.write_text("".join(json.dumps(entries, separators=(",", ":")) + "\n" for entries in tuples))
    return len(sentences)


@lru_cache(maxsize=1)
def open_texts(splits: Tuple[Split, ...], remove_bpe: str, fingerprint: str) -> List[SourceText]:
    """The source texts of splits, opened once in a process; ``fingerprint`` distinguishes data with the same path."""
    return [SourceText(split, remove_bpe) for split in splits]


# Each process, also on a Dask cluster, has one extractor, which its threads share.
_extractors: Dict[Tuple[ExtractionOptions, ServerOptions], RelationExtractor] = {}
_lock = threading.Lock()


def get_extractor(options: ExtractionOptions, server_options: ServerOptions) -> RelationExtractor:
    """The extractor of this process, made at the first call; see :func:`close_extractors`."""
    with _lock:
        key = (options, server_options)
        if key not in _extractors:
            _extractors[key] = build_extractor(
                options.extractor,
                options.language,
                server_options.urls,
                server_options.memory,
                server_options.timeout,
                dict(options.properties),
            )
        return _extractors[key]


def close_extractors() -> None:
    """Close the extractors of this process, and the servers that they started."""
    while _extractors:
        _extractors.popitem()[1].close()


def remove_shards(folder: Path) -> None:
    """Remove a folder of shards whose results have been written."""
    shutil.rmtree(folder, ignore_errors=True)

"""Extraction from the sentences of binarized data in shards, which are kept until all are done.

A shard is some sentences of the data, named by their rows, and a file that holds their tuples once it is done. Whoever
is handed one reads the data by path, so nothing large travels.
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
from fairseq_ctxgates.relations.extraction.corpus import SourceText
from fairseq_ctxgates.relations.extraction.extractor import RelationExtractor, RelationTuple, build_extractor

SHARD_SENTENCES = 250
FORMAT = 1  # of the shards' files and of how tuples are read from parses: another one does not go on from these


@dataclass(frozen=True)
class ExtractionOptions:
    """What decides the tuples of a sentence. ``properties``: pairs of names and values, CoreNLP's own."""

    extractor: str
    language: str
    remove_bpe: str
    properties: Tuple[Tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Resources:
    """What extracts them: servers that run (none: one is started, with this memory), seconds for a request."""

    urls: Tuple[str, ...] = ()
    memory: str = "4G"
    timeout: float = 60


@dataclass(frozen=True)
class Shard:
    """Sentences to be extracted from by whoever is handed the shard.

    path: where the result goes
    splits: the data, whose source sides have the digests ``fingerprint``
    places: for each sentence the number of its split and its row, (sentences, 2)
    """

    path: Path
    splits: Tuple[Split, ...]
    fingerprint: str
    places: np.ndarray
    options: ExtractionOptions
    resources: Resources


def fingerprint_of_work(splits: Sequence[Split], digests: Sequence[Dict[str, str]], options: ExtractionOptions) -> str:
    """A digest of what decides all results and their division into shards.

    Args:
        digests: the fingerprint of each split's source
    """
    data = [[split.name, digest] for split, digest in zip(splits, digests)]
    content = json.dumps([FORMAT, SHARD_SENTENCES, asdict(options), data], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def work_folder(splits: Sequence[Split], fingerprint: str) -> Path:
    """Where the shards of a piece of work are kept: beside the data, in the first directory."""
    first = splits[0]
    return first.data_dir / f".relation.{first.source_lang}-{first.target_lang}.{fingerprint}"


class ExtractedTuples:
    """The tuples of all distinct sentences by their number, once all shards are done; read from the shards' files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._lines = lru_cache(maxsize=256)(self._read)  # sentences that are met again may be anywhere

    def _read(self, shard: int) -> List[bytes]:
        return self._paths[shard].read_bytes().splitlines()

    def __getitem__(self, number: int) -> Optional[List[RelationTuple]]:
        shard, line = divmod(int(number), SHARD_SENTENCES)
        tuples = json.loads(self._lines(shard)[line])
        return None if tuples is None else [RelationTuple(*parts) for parts in tuples]


def extract_distinct(
    splits: Sequence[Split],
    places: np.ndarray,
    fingerprint: str,
    options: ExtractionOptions,
    resources: Resources,
    executor: Optional[Executor],
) -> ExtractedTuples:
    """Extract from the sentences at some places (see :func:`find_distinct`), with a progress bar. Shards that an
    interrupted run has done are not done again; the folder is left for the caller to remove.

    Raises:
        UserError: the extractor is lost for good
    """
    splits = tuple(
        replace(split, data_dir=split.data_dir.absolute()) for split in splits
    )  # for whoever works elsewhere
    folder = work_folder(splits, fingerprint)
    folder.mkdir(exist_ok=True)
    shards = [
        Shard(folder / f"{first:010}", splits, fingerprint, rows, options, resources)
        for first in range(0, len(places), SHARD_SENTENCES)
        for rows in [places[first : first + SHARD_SENTENCES]]
    ]
    missing = [shard for shard in shards if not shard.path.exists()]
    if missing and (executor is None or isinstance(executor, ThreadPoolExecutor)):
        print(f"preparing {options.extractor}", file=sys.stderr)
        extractor_of_process(options, resources)  # before the bar begins to count time
    done = len(places) - sum(len(shard.places) for shard in missing)
    with tqdm(total=len(places), initial=done, desc="extracting", unit=" sentences", smoothing=0.1) as bar:
        for number in run_shards(missing, executor):
            bar.update(number)
    return ExtractedTuples([shard.path for shard in shards])


def run_shards(shards: Sequence[Shard], executor: Optional[Executor]) -> Iterator[int]:
    """The number of sentences of each shard when it is done."""
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
    """Extract from the sentences of a shard and write their tuples, a line a sentence; ``null`` where it could not be
    parsed. The file appears when it is whole, so it does no harm to do it twice.

    Returns:
        the number of sentences
    """
    texts = open_texts(shard.splits, shard.options.remove_bpe, shard.fingerprint)
    sentences = [texts[split][row].words for split, row in shard.places.tolist()]
    tuples = extractor_of_process(shard.options, shard.resources).extract_tuples(sentences)
    with atomic_write(shard.path) as temporary:
        temporary.write_text("".join(json.dumps(found, separators=(",", ":")) + "\n" for found in tuples))
    return len(sentences)


@lru_cache(maxsize=1)
def open_texts(splits: Tuple[Split, ...], remove_bpe: str, fingerprint: str) -> List[SourceText]:
    """The texts of splits, opened once in a process; ``fingerprint`` tells other data at the same place."""
    return [SourceText(split, remove_bpe) for split in splits]


# A process, also one of a Dask cluster, has one extractor, which its threads share.
_extractors: Dict[Tuple[ExtractionOptions, Resources], RelationExtractor] = {}
_lock = threading.Lock()


def extractor_of_process(options: ExtractionOptions, resources: Resources) -> RelationExtractor:
    """The extractor of this process, made when it is first asked for; see :func:`close_extractors`."""
    with _lock:
        key = (options, resources)
        if key not in _extractors:
            _extractors[key] = build_extractor(
                options.extractor,
                options.language,
                resources.urls,
                resources.memory,
                resources.timeout,
                dict(options.properties),
            )
        return _extractors[key]


def close_extractors() -> None:
    """Close the extractors of this process."""
    while _extractors:
        _extractors.popitem()[1].close()


def remove_work(folder: Path) -> None:
    """Remove the shards of finished work."""
    shutil.rmtree(folder, ignore_errors=True)

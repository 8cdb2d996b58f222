"""Extraction of relation tuples in shards, which are kept until all shards are finished.

A shard is a list of rows, and a file for the tuples of their sentences. A worker reads the data by path, so that
no large data are sent to it. A later run goes on with the shards: it makes damaged shards again, and parses once more
the sentences that the parser failed on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Callable, Dict, Generator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write
from fairseq_ctxgates.relations.extraction.build import ExtractionOptions, ServerOptions, get_extractor
from fairseq_ctxgates.relations.extraction.corpus import SourceText
from fairseq_ctxgates.relations.extraction.extractor import RelationExtractor, RelationTuple, Tuples, is_too_long

SHARD_SENTENCES = 250
ALWAYS_ALLOWED_FAILURES = 10  # sentences, but not more than half of them: a share means little in a tiny corpus
EXAMPLES = 3  # failed sentences in an error message
FORMAT = 3  # version of the shard files and of the extraction; shards of another version are not reused


@dataclass(frozen=True)
class Shard:
    """A unit of work: sentences whose tuples are extracted.

    Attributes:
        path: file for the result
        splits: splits with the sentences
        fingerprint: digest of the data and the options, see :func:`extraction_fingerprint`
        places: for each sentence the index of its split and its row, (sentences, 2)
    """

    path: Path
    splits: Tuple[Split, ...]
    fingerprint: str
    places: np.ndarray
    options: ExtractionOptions
    server_options: ServerOptions


class Outcome(NamedTuple):
    """What a worker did for a shard.

    Attributes:
        parsed: the number of sentences that were sent to the parser, or are too long for it
        failed: the places of the sentences that the parser failed on
    """

    parsed: int
    failed: List[List[int]]


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


def write_shard(path: Path, tuples: Sequence[Tuples]) -> None:
    """Write the tuples of a shard's sentences atomically: a shard may run twice.

    The file has one line of JSON for each sentence, ``null`` for a sentence that could not be parsed, and a last line
    with the digest of all other lines.
    """
    content = "".join(json.dumps(entries, separators=(",", ":")) + "\n" for entries in tuples).encode()
    with atomic_write(path) as temporary:
        temporary.write_bytes(content + _digest(path, content) + b"\n")


def read_shard(path: Path) -> Optional[List[bytes]]:
    """The lines of a shard's sentences; None if the file is damaged."""
    *lines, digest = path.read_bytes().split(b"\n")[:-1] or [b""]
    content = b"".join(line + b"\n" for line in lines)
    return lines if digest == _digest(path, content) else None


def _digest(path: Path, content: bytes) -> bytes:
    """A digest of a shard's content and of its name; an empty shard has one, too."""
    return hashlib.blake2b(path.name.encode() + b"\n" + content, digest_size=8).hexdigest().encode()


class ExtractedTuples:
    """The tuples of each distinct sentence by its index, read from the files of the finished shards."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._lines = lru_cache(maxsize=256)(self._read)  # a repeated sentence may be in any shard

    def _read(self, shard: int) -> List[bytes]:
        lines = read_shard(self._paths[shard])
        if lines is None:
            raise UserError(f"{self._paths[shard]} was damaged: run the same command again, which makes it again")
        return lines

    def __getitem__(self, index: int) -> Tuples:
        shard, line = divmod(int(index), SHARD_SENTENCES)
        return parse_shard_line(self._lines(shard)[line])


def parse_shard_line(line: bytes) -> Tuples:
    """The tuples of a line of a shard."""
    tuples = json.loads(line)
    return None if tuples is None else [RelationTuple(*parts) for parts in tuples]


def extract_distinct_sentences(
    splits: Sequence[Split],
    places: np.ndarray,
    fingerprint: str,
    options: ExtractionOptions,
    server_options: ServerOptions,
    max_failed: float,
    executor: Optional[Executor],
) -> ExtractedTuples:
    """Extract the tuples of distinct sentences, with a progress bar.

    The shards of an interrupted run are reused. The caller removes the folder with :func:`remove_shards`.

    Args:
        places: see :func:`find_distinct_sentences`
        max_failed: share of the sentences that the parser may fail on

    Raises:
        UserError: the extractor no longer runs, or failed on too many sentences
    """
    # Absolute paths: another process may have another working directory.
    splits = tuple(replace(split, data_dir=split.data_dir.absolute()) for split in splits)
    folder = shard_folder(splits, fingerprint)
    shards = []
    for first in range(0, len(places), SHARD_SENTENCES):
        rows = places[first : first + SHARD_SENTENCES]
        shards.append(Shard(folder / f"{first:010}", splits, fingerprint, rows, options, server_options))
    done = [finished_sentences(shard.path) for shard in shards]
    missing = [shard for shard, count in zip(shards, done) if count < len(shard.places)]
    run = extract_shard
    if missing and (executor is None or isinstance(executor, ThreadPoolExecutor)):
        print(f"preparing {options.extractor}", file=sys.stderr)
        # Before the progress bar starts to measure time; and once it is closed, no thread makes another one.
        run = partial(extract_shard, extractor=get_extractor(options, server_options))
    folder.mkdir(exist_ok=True)
    failed: List[List[int]] = []
    with ExitStack() as stack:
        progress = {"desc": "extracting", "unit": " sentences", "smoothing": 0.1}
        bar = stack.enter_context(tqdm(total=len(places), initial=sum(done), **progress))
        for outcome in stack.enter_context(closing(run_shards(run, missing, executor))):
            bar.update(outcome.parsed)
            failed += outcome.failed
            if len(failed) > allowed_failures(max_failed, len(places)):
                texts = open_texts(splits, options.remove_bpe, fingerprint)
                raise UserError(too_many_failures(failed, len(places), texts, folder))
    return ExtractedTuples([shard.path for shard in shards])


def finished_sentences(path: Path) -> int:
    """The number of sentences in a shard that were parsed; 0 if there is no such shard, or if it is damaged."""
    if not path.exists():
        return 0
    lines = read_shard(path)
    if lines is None:
        print(f"{path} is damaged and made again", file=sys.stderr)
        return 0
    return len(lines) - lines.count(b"null")


def allowed_failures(max_failed: float, sentences: int) -> int:
    """How many of these sentences the parser may fail on; with ``max_failed`` 0, none."""
    floor = min(ALWAYS_ALLOWED_FAILURES, sentences // 2) if max_failed else 0
    return max(floor, int(max_failed * sentences + 1e-6))  # 0.29 of 100 are 29; their product is below


def too_many_failures(
    failed: Sequence[Sequence[int]], sentences: int, texts: Sequence[SourceText], folder: Path
) -> str:
    """The error message for sentences that the parser failed on, with examples.

    Args:
        failed: the places of these sentences
        sentences: the number of all sentences
    """
    examples = []
    for index, row in failed[:EXAMPLES]:
        split, words = texts[index].split, " ".join(texts[index][row].words)
        shown = words if len(words) <= 60 else f"{words[:60]}..."
        examples.append(f"{split.data_dir}/{split.name}, row {row + 1}: {shown!r}")
    return (
        f"the parser failed on {len(failed):,} of {sentences:,} sentences, which is more than --max-failed allows "
        f"({'; '.join(examples)}): look at the parser, its memory and --timeout, and run the same command again, which "
        f"tries these sentences once more and keeps the tuples of all other sentences (in {folder}), or with a larger "
        f"--max-failed"
    )


def run_shards(
    run: Callable[[Shard], Outcome], shards: Sequence[Shard], executor: Optional[Executor]
) -> Generator[Outcome, None, None]:
    """The outcome of each shard, as soon as the shard is finished."""
    if executor is None:
        yield from map(run, shards)
        return
    futures = [executor.submit(run, shard) for shard in shards]
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def extract_shard(shard: Shard, extractor: Optional[RelationExtractor] = None) -> Outcome:
    """Extract and write the tuples of a shard's sentences, except for sentences that an earlier run has parsed.

    Args:
        extractor: default: the one of this process
    """
    if extractor is None:
        extractor = get_extractor(shard.options, shard.server_options)
    texts = open_texts(shard.splits, shard.options.remove_bpe, shard.fingerprint)
    places = shard.places.tolist()
    lines = read_shard(shard.path) if shard.path.exists() else None
    tuples: List[Tuples] = [parse_shard_line(line) for line in lines or [b"null"] * len(places)]
    missing = [row for row, entries in enumerate(tuples) if entries is None]
    sentences = [texts[split][row].words for split, row in (places[row] for row in missing)]
    extracted = extractor.extract_tuples(sentences)
    for row, entries in zip(missing, extracted):
        tuples[row] = entries
    write_shard(shard.path, tuples)
    failed = [
        places[row]
        for row, words, entries in zip(missing, sentences, extracted)
        if entries is None and not is_too_long(words)
    ]
    return Outcome(len(missing), failed)


@lru_cache(maxsize=1)
def open_texts(splits: Tuple[Split, ...], remove_bpe: str, fingerprint: str) -> List[SourceText]:
    """The source texts of splits, opened once in a process; ``fingerprint`` distinguishes data with the same path."""
    return [SourceText(split, remove_bpe) for split in splits]


def remove_shards(folder: Path) -> None:
    """Remove a folder of shards whose results have been written."""
    shutil.rmtree(folder, ignore_errors=True)

"""Counting which words are found together (Li et al. 2020, section 2.3), for both tables in one go.

First the types of every sentence are written to a scratch folder, then blocks of target types are counted from there:
for each target type y, the types in the contexts of y are tallied in one dense row, C(y, ·). Nothing is sorted and no
pair is stored more than once, so the cost is that of looking at every pair of every sentence once.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.context_gates.pmi.kernels import EOS, group_contexts, tally_contexts, types_of_sentences
from fairseq_ctxgates.context_gates.pmi.sentences import (
    Sentences,
    count_types,
    map_array,
    map_split,
    row_blocks,
    starts,
    types_dtype,
    vocabulary_size,
)
from fairseq_ctxgates.context_gates.pmi.table import REMEDY, Member, PMIOptions, PMITable, save_table, table_path
from fairseq_ctxgates.data.data_directory import Split, fingerprint
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import scratch_folder, write_array

DEFAULT_MEMORY = 4 << 30
NAMES = ("bilingual", "monolingual")
SENTENCES_AT_ONCE = 1 << 15
PAIRS_AT_ONCE = 1 << 24
# The bytes that a block needs for every occurrence of its types (see group_contexts) and for every pair it may find.
OCCURRENCE_BYTES, PAIR_BYTES = 4 * 8, 4 + 4


class Statistics(NamedTuple):
    """What is known of the training data once its types are collected.

    occurrences (target types): sentences that each type is in
    pairs (2, target types): C(y) of the bilingual and of the monolingual table
    """

    occurrences: np.ndarray
    pairs: np.ndarray


@dataclass(frozen=True)
class Block:
    """Consecutive target types to be counted by whoever is handed it; the text is in the scratch folder.

    first: the first of the types
    occurrences (types): sentences that each is in
    pairs: how many pairs there are to count, in both tables
    widths, capacities: of either table, see :func:`tally_contexts`
    least: pairs that are counted less often are left out
    """

    scratch: Path
    number: int
    first: int
    occurrences: np.ndarray
    pairs: int
    widths: Tuple[int, int]
    capacities: Tuple[int, int]
    least: int

    def part_path(self, name: str, array: str) -> Path:
        return self.scratch / f"{name}.{self.number}.{array}"


class Margins(NamedTuple):
    """Of one table, or of a block of its rows, whose pairs are in files.

    sizes (rows): the number of distinct pairs in each row
    column_counts (context types): the sum of the rows
    """

    sizes: np.ndarray
    column_counts: np.ndarray


def count_tables(
    splits: Sequence[Split],
    folder: Path,
    options: PMIOptions,
    memory: int = DEFAULT_MEMORY,
    workers: int = 1,
    executor: Optional[Executor] = None,
    show_progress: bool = False,
) -> Tuple[PMITable, PMITable]:
    """Count the bilingual and the monolingual table of equation 6 and store them in ``folder``.

    Args:
        splits: the training data, of one language pair; all with the same dictionaries (see :func:`check_split`)
        folder: where the tables go; while counting, also some 10 bytes a token and 8 bytes a distinct pair of scratch
        memory: bytes for the arrays of all processes together
        workers: how many processes the executor has
        executor: runs the blocks, on processes that see the same files; the result is the same as without
    """
    source_lang, target_lang = splits[0].source_lang, splits[0].target_lang
    widths = (vocabulary_size(splits[0], source_lang), vocabulary_size(splits[0], target_lang))
    metadata = describe(splits)
    frequencies = token_frequencies(splits, widths) if options.counts == "frequency" else []
    with scratch_folder(folder, "pmi") as scratch:
        statistics = collect_types(splits, scratch, widths, show_progress)
        blocks = divide(statistics, scratch, options.min_count, widths, memory / 2 / workers, workers)
        margins = run_blocks(blocks, executor, show_progress)
        for number, name in enumerate(NAMES):
            members = table_members(name, blocks, margins[number], statistics.pairs[number])
            if options.counts == "frequency":
                members["row_counts"] = Member.of(frequencies[1])
                members["column_counts"] = Member.of(frequencies[number])
            path = table_path(folder, name, source_lang, target_lang)
            save_table(path, int(statistics.pairs[number].sum()), members, options, metadata)
    return load_tables(folder, source_lang, target_lang, verify=False)


def load_tables(folder: Path, source_lang: str, target_lang: str, verify: bool = True) -> Tuple[PMITable, PMITable]:
    """The bilingual and the monolingual table of a language pair; UserError when one is missing or damaged, or when
    they were not made together."""
    paths = [table_path(folder, name, source_lang, target_lang) for name in NAMES]
    bilingual, monolingual = (PMITable.load(path, verify) for path in paths)
    if bilingual.metadata != monolingual.metadata:
        raise UserError(f"{paths[0]} and {paths[1]} were not made together; {REMEDY}")
    return bilingual, monolingual


def describe(splits: Sequence[Split]) -> Dict[str, Any]:
    """What tables were made of: digests of the dictionaries, and of each split of the training data."""
    training: Dict[str, List[Dict[str, str]]] = {}
    for split in splits:
        training.setdefault(split.name, []).append(fingerprint(split))
    return {"dictionaries": dictionary_digests(splits[0]), "train": training}


def dictionary_digests(split: Split) -> Dict[str, str]:
    """A digest of the source and of the target dictionary."""
    return {
        side: hashlib.blake2b(split.dictionary_path(lang).read_bytes(), digest_size=16).hexdigest()
        for side, lang in (("source", split.source_lang), ("target", split.target_lang))
    }


def collect_types(splits: Sequence[Split], scratch: Path, widths: Tuple[int, int], show_progress: bool) -> Statistics:
    """Write the types of every sentence to the scratch folder, see :func:`types_of_sentences`."""
    texts = [map_split(split) for split in splits]
    occurrences, pairs = np.zeros(widths[1], np.int64), np.zeros((2, widths[1]), np.int64)
    sizes: List[List[np.ndarray]] = [[], []]
    bar = tqdm(
        total=sum(len(source.start) - 1 for source, _ in texts),
        desc="reading",
        unit=" sentences",
        unit_scale=True,
        disable=not show_progress,
    )
    names = ("source.types", "target.types", "target.preceding")
    with bar, ExitStack() as stack:
        files = [stack.enter_context(open(scratch / name, "wb")) for name in names]
        for source, target in parts_of(texts):
            source_types, _, source_sizes = types_of_sentences(*source, widths[0])
            target_types, preceding, target_sizes = types_of_sentences(*target, widths[1])
            files[0].write(source_types.astype(types_dtype(widths[0])).data)
            files[1].write(target_types.astype(types_dtype(widths[1])).data)
            files[2].write(preceding.data)
            occurrences += np.bincount(target_types, minlength=widths[1])
            pairs[0] += weighted_count(target_types, np.repeat(source_sizes, target_sizes), widths[1])
            pairs[1] += weighted_count(target_types, preceding, widths[1])
            sizes[0].append(source_sizes)
            sizes[1].append(target_sizes)
            bar.update(len(source_sizes))
    for name, side_sizes in zip(("source.start", "target.start"), sizes):
        starts(np.concatenate(side_sizes)).tofile(scratch / name)
    return Statistics(occurrences, pairs)


def token_frequencies(splits: Sequence[Split], widths: Tuple[int, int]) -> List[np.ndarray]:
    """How many tokens each source type and each target type has, end of sentence left out."""
    texts = [map_split(split) for split in splits]
    frequencies = [
        np.sum([count_types(text[side].ids, width) for text in texts], axis=0) for side, width in enumerate(widths)
    ]
    for frequency in frequencies:
        frequency[EOS] = 0
    return frequencies


def parts_of(texts: Sequence[Tuple[Sentences, Sentences]]) -> Iterator[Tuple[Sentences, Sentences]]:
    """Source and target of a few thousand sentence pairs at a time."""
    for source, target in texts:
        for first in range(0, len(source.start) - 1, SENTENCES_AT_ONCE):
            part = slice(first, first + SENTENCES_AT_ONCE + 1)
            yield Sentences(source.ids, source.start[part]), Sentences(target.ids, target.start[part])


def weighted_count(types: np.ndarray, weights: np.ndarray, vocabulary: int) -> np.ndarray:
    """The sum of the weights of each type; exact, although bincount sums in float64, because it stays below 2^53."""
    return np.bincount(types, weights, minlength=vocabulary).astype(np.int64)


def divide(
    statistics: Statistics, scratch: Path, least: int, widths: Tuple[int, int], memory: float, workers: int
) -> List[Block]:
    """Blocks of target types that take about equally long and fit in ``memory`` bytes."""
    distinct = np.minimum(statistics.pairs, np.array(widths)[:, None])
    size = statistics.occurrences * OCCURRENCE_BYTES + distinct.max(axis=0) * PAIR_BYTES
    work = statistics.pairs.sum(axis=0)
    number = max(1, min(8 * workers, int(work.sum()) // PAIRS_AT_ONCE))
    return [
        Block(
            scratch=scratch.absolute(),  # another process may work elsewhere
            number=position,
            first=first,
            occurrences=statistics.occurrences[first:last],
            pairs=int(work[first:last].sum()),
            widths=widths,
            capacities=(int(distinct[0, first:last].sum()), int(distinct[1, first:last].sum())),
            least=least,
        )
        for position, (first, last) in enumerate(row_blocks(work, size, memory, number))
    ]


def run_blocks(blocks: List[Block], executor: Optional[Executor], show_progress: bool) -> List[Margins]:
    """Count all blocks; returns the margins of both tables."""
    sizes: List[List[np.ndarray]] = [[], []]
    column_counts = [np.zeros(width, np.int64) for width in blocks[0].widths]
    total = sum(block.pairs for block in blocks)
    with tqdm(total=total, desc="counting", unit=" pairs", unit_scale=True, disable=not show_progress) as bar:
        for block, counted in zip(blocks, (map if executor is None else executor.map)(count_block, blocks)):
            for table, margins in enumerate(counted):
                sizes[table].append(margins.sizes)
                column_counts[table] += margins.column_counts
            bar.update(block.pairs)
    return [Margins(np.concatenate(sizes[table]), column_counts[table]) for table in range(2)]


def count_block(block: Block) -> Tuple[Margins, Margins]:
    """Count one block of target types for both tables, and write the pairs to the scratch folder."""
    source, target, preceding = map_types(block.scratch, block.widths)
    row_start = starts(block.occurrences)
    spans = group_contexts(target.ids, target.start, source.start, preceding, block.first, row_start)
    bilingual = tally_block(block, 0, row_start, spans, source.ids)
    monolingual = tally_block(block, 1, row_start, spans, target.ids)
    return bilingual, monolingual


def map_types(scratch: Path, widths: Tuple[int, int]) -> Tuple[Sentences, Sentences, np.ndarray]:
    """What :func:`collect_types` wrote: the types of the source, of the target, and how many of them precede each."""
    source, target = (
        Sentences(
            map_array(scratch / f"{side}.types", types_dtype(width)), map_array(scratch / f"{side}.start", np.int64)
        )
        for side, width in zip(("source", "target"), widths)
    )
    return source, target, map_array(scratch / "target.preceding", np.int32)


def tally_block(block: Block, table: int, row_start: np.ndarray, spans: np.ndarray, contexts: np.ndarray) -> Margins:
    """Count one block for one table (0 or 1 of NAMES) and write its pairs to files."""
    columns, counts, sizes, column_counts, _ = tally_contexts(
        row_start, spans[:, table], contexts, block.widths[table], block.capacities[table], block.least
    )
    write_array(block.part_path(NAMES[table], "columns"), columns)
    write_array(block.part_path(NAMES[table], "pair_counts"), counts)
    return Margins(sizes, column_counts)


def table_members(name: str, blocks: List[Block], margins: Margins, row_counts: np.ndarray) -> Dict[str, Member]:
    """The arrays of a table, put together from its blocks."""
    row_start = starts(margins.sizes)
    members = {
        "row_counts": Member.of(row_counts),
        "column_counts": Member.of(margins.column_counts),
        "row_start": Member.of(row_start),
    }
    for array, dtype in (("columns", types_dtype(len(margins.column_counts))), ("pair_counts", np.uint32)):
        paths = [block.part_path(name, array) for block in blocks]
        members[array] = Member(dtype, int(row_start[-1]), map(partial(np.fromfile, dtype=dtype), paths))
    return members

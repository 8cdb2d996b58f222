"""Counting which words occur together (Li et al. 2020, section 2.3), for both tables in one pass.

First the types of all sentences are written to a scratch folder. Then blocks of target types are counted: for each
target type y, the types in the contexts of y are counted in one dense row, C(y, ·). No pair is sorted or stored twice,
so the cost is one step for each pair of each sentence.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.context_gates.pmi.kernels import group_contexts, tally_contexts, types_of_sentences
from fairseq_ctxgates.context_gates.pmi.sentences import (
    Sentences,
    StartsFile,
    count_types,
    divide_evenly,
    divide_rows,
    map_array,
    map_ids,
    smallest_dtype,
    starts,
    text_files,
    vocabulary_size,
)
from fairseq_ctxgates.context_gates.pmi.table import (
    LABEL_COMMAND,
    PMIOptions,
    PMITable,
    Provenance,
    StoredArray,
    save_table,
    table_path,
)
from fairseq_ctxgates.data.data_directory import EOS, Split, digest_of, fingerprint
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import name_file_if_disk_full, scratch_folder, write_array

DEFAULT_MEMORY = 4 << 30
TABLE_NAMES = ("bilingual", "monolingual")
SENTENCES_AT_ONCE = 1 << 15
PAIRS_PER_BLOCK = 1 << 24
# The bytes that a block needs for each occurrence of its types (see group_contexts) and for each possible pair.
OCCURRENCE_BYTES, PAIR_BYTES = 4 * 8, 4 + 4


class TypeStatistics(NamedTuple):
    """Counts of each target type in the training data.

    Attributes:
        sentences: the number of all sentences
        occurrences: the number of sentences with the type, (target types,)
        pairs: C(y) of the bilingual and of the monolingual table, (2, target types)
    """

    sentences: int
    occurrences: np.ndarray
    pairs: np.ndarray


@dataclass(frozen=True)
class CountingBlock:
    """A unit of work: consecutive target types whose pairs are counted from the text in the scratch folder.

    Attributes:
        index: the number of the block, from 0
        first: the first target type
        occurrences: the number of sentences with each type, (types,)
        pairs: the number of pairs to count, in both tables
        parts: the number of parts of the text that are counted one after another, because the contexts of a type do not
            fit in memory; more than one only for a block of a single type
        widths, capacities: for each of the two tables, see :func:`tally_contexts`
        min_count: pairs with a lower count are left out
    """

    scratch: Path
    index: int
    first: int
    occurrences: np.ndarray
    pairs: int
    parts: int
    widths: Tuple[int, int]
    capacities: Tuple[int, int]
    min_count: int

    def part_path(self, name: str, array: str) -> Path:
        """The file of this block's part of an array of the table ``name``."""
        return self.scratch / f"{name}.{self.index}.{array}"


class Pairs(NamedTuple):
    """The pairs of a block's rows, see :func:`tally_contexts`."""

    columns: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray
    column_counts: np.ndarray


class Marginals(NamedTuple):
    """Marginals of one table, or of a block of its rows; the pairs are in files.

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
) -> Tuple[PMITable, PMITable]:
    """Count the bilingual and the monolingual table of equation 6 and store them in ``folder``.

    Args:
        splits: the training data of one language pair; all have the same dictionaries (see :func:`check_split`)
        folder: folder for the tables; its file system also needs space for a scratch folder, about 10 bytes for each
            token, 32 for each sentence pair and 8 for each distinct pair
        memory: bytes for the arrays of all processes together
        workers: number of processes of the executor
        executor: runs the blocks in processes that see the same files; the result does not depend on it
    """
    source_lang, target_lang = splits[0].source_lang, splits[0].target_lang
    widths = (vocabulary_size(splits[0], source_lang), vocabulary_size(splits[0], target_lang))
    provenance = training_provenance(splits)
    frequencies = token_frequencies(splits, widths) if options.counts == "frequency" else []
    with scratch_folder(folder, "pmi") as scratch:
        statistics = collect_types(splits, scratch, widths)
        blocks = counting_blocks(statistics, scratch, options.min_count, widths, memory / 2 / workers, workers)
        marginals = run_blocks(blocks, executor)
        for index, name in enumerate(TABLE_NAMES):
            arrays = table_arrays(name, blocks, marginals[index], statistics.pairs[index])
            if options.counts == "frequency":
                arrays["row_counts"] = StoredArray.from_array(frequencies[1])
                arrays["column_counts"] = StoredArray.from_array(frequencies[index])
            path = table_path(folder, name, source_lang, target_lang)
            save_table(path, int(statistics.pairs[index].sum()), arrays, options, provenance)
    return load_tables(folder, source_lang, target_lang, verify=False)


def table_paths(folder: Path, source_lang: str, target_lang: str) -> List[Path]:
    """The paths of the bilingual and the monolingual table of a language pair."""
    return [table_path(folder, name, source_lang, target_lang) for name in TABLE_NAMES]


def load_tables(folder: Path, source_lang: str, target_lang: str, verify: bool = True) -> Tuple[PMITable, PMITable]:
    """Load the bilingual and the monolingual table of a language pair.

    Raises:
        UserError: a table is missing or damaged, or the two tables are from different runs
    """
    paths = table_paths(folder, source_lang, target_lang)
    bilingual, monolingual = (PMITable.load(path, verify) for path in paths)
    if bilingual.metadata != monolingual.metadata:
        raise UserError(f"{paths[0]} and {paths[1]} were not made together; {LABEL_COMMAND}")
    return bilingual, monolingual


def training_provenance(splits: Sequence[Split]) -> Provenance:
    """Digests of the dictionaries, and of each split of the training data."""
    training: Dict[str, List[Dict[str, str]]] = {}
    for split in splits:
        training.setdefault(split.name, []).append(fingerprint(split))
    return {"dictionaries": dictionary_digests(splits[0]), "train": training}


def dictionary_digests(split: Split) -> Dict[str, str]:
    """A digest of the source and of the target dictionary."""
    roles = ("source", split.source_lang), ("target", split.target_lang)
    return {role: digest_of(split.dictionary_path(lang)) for role, lang in roles}


def collect_types(splits: Sequence[Split], scratch: Path, widths: Tuple[int, int]) -> TypeStatistics:
    """Write the types of all sentences to the scratch folder, see :func:`types_of_sentences`."""
    files = [text_files(split, scratch, f"text{index}") for index, split in enumerate(splits)]
    texts = [(source.map(), target.map()) for source, target in files]
    sentences = sum(len(source.start) - 1 for source, _ in texts)
    occurrences, pairs = np.zeros(widths[1], np.int64), np.zeros((2, widths[1]), np.int64)
    bar = tqdm(total=sentences, desc="reading", unit=" sentences", unit_scale=True)
    names = ("source.types", "target.types", "target.preceding")
    with name_file_if_disk_full(scratch), bar, ExitStack() as stack:
        types_files = [stack.enter_context(open(scratch / name, "wb")) for name in names]
        source_start, target_start = (
            stack.enter_context(closing(StartsFile(scratch / f"{role}.start"))) for role in ("source", "target")
        )
        for source, target in sentence_chunks(texts):
            source_types, _, source_sizes = types_of_sentences(*source, widths[0])
            target_types, preceding, target_sizes = types_of_sentences(*target, widths[1])
            types_files[0].write(source_types.astype(smallest_dtype(widths[0])).data)
            types_files[1].write(target_types.astype(smallest_dtype(widths[1])).data)
            types_files[2].write(preceding.data)
            occurrences += np.bincount(target_types, minlength=widths[1])
            pairs[0] += weighted_count(target_types, np.repeat(source_sizes, target_sizes), widths[1])
            pairs[1] += weighted_count(target_types, preceding, widths[1])
            source_start.add(source_sizes)
            target_start.add(target_sizes)
            bar.update(len(source_sizes))
    return TypeStatistics(sentences, occurrences, pairs)


def token_frequencies(splits: Sequence[Split], widths: Tuple[int, int]) -> List[np.ndarray]:
    """The number of tokens of each source type and of each target type, without end of sentence."""
    frequencies = [
        np.sum([count_types(map_ids(split.text_prefix(lang)), width) for split in splits], axis=0)
        for lang, width in zip((splits[0].source_lang, splits[0].target_lang), widths)
    ]
    for frequency in frequencies:
        frequency[EOS] = 0
    return frequencies


def sentence_chunks(texts: Sequence[Tuple[Sentences, Sentences]]) -> Iterator[Tuple[Sentences, Sentences]]:
    """Source and target of at most ``SENTENCES_AT_ONCE`` sentence pairs at a time."""
    for source, target in texts:
        for first in range(0, len(source.start) - 1, SENTENCES_AT_ONCE):
            last = first + SENTENCES_AT_ONCE
            yield source.between(first, last), target.between(first, last)


def weighted_count(types: np.ndarray, weights: np.ndarray, vocabulary: int) -> np.ndarray:
    """The sum of the weights of each type; bincount sums in float64, which is exact below 2^53."""
    return np.bincount(types, weights, minlength=vocabulary).astype(np.int64)


def counting_blocks(
    statistics: TypeStatistics, scratch: Path, min_count: int, widths: Tuple[int, int], memory: float, workers: int
) -> List[CountingBlock]:
    """Blocks of target types with about equal work; the arrays of each block fit in ``memory`` bytes."""
    distinct = np.minimum(statistics.pairs, np.array(widths)[:, None])
    size = statistics.occurrences * OCCURRENCE_BYTES + distinct.max(axis=0) * PAIR_BYTES
    work = statistics.pairs.sum(axis=0)
    num_blocks = max(1, min(8 * workers, int(work.sum()) // PAIRS_PER_BLOCK))
    parts_of_text = math.ceil(statistics.sentences * OCCURRENCE_BYTES / memory)  # a type counts once in a sentence
    return [
        CountingBlock(
            scratch=scratch.absolute(),  # another process may have another working directory
            index=position,
            first=first,
            occurrences=statistics.occurrences[first:last],
            pairs=int(work[first:last].sum()),
            parts=parts_of_text if last == first + 1 and size[first] > memory else 1,
            widths=widths,
            capacities=(int(distinct[0, first:last].sum()), int(distinct[1, first:last].sum())),
            min_count=min_count,
        )
        for position, (first, last) in enumerate(divide_rows(work, size, memory, num_blocks))
    ]


def run_blocks(blocks: List[CountingBlock], executor: Optional[Executor]) -> List[Marginals]:
    """Count all blocks and return the marginals of both tables."""
    sizes: List[List[np.ndarray]] = [[], []]
    column_counts = [np.zeros(width, np.int64) for width in blocks[0].widths]
    total = sum(block.pairs for block in blocks)
    with tqdm(total=total, desc="counting", unit=" pairs", unit_scale=True) as bar:
        for block, counted in zip(blocks, (map if executor is None else executor.map)(count_block, blocks)):
            for table, marginals in enumerate(counted):
                sizes[table].append(marginals.sizes)
                column_counts[table] += marginals.column_counts
            bar.update(block.pairs)
    return [Marginals(np.concatenate(sizes[table]), column_counts[table]) for table in range(2)]


def count_block(block: CountingBlock) -> Tuple[Marginals, Marginals]:
    """Count one block of target types for both tables, and write the pairs to the scratch folder."""
    text = map_types(block.scratch, block.widths)
    in_order = tally_block(block, *text) if block.parts <= 1 else tally_row(block, *text)
    # One after the other: the pairs of both tables need not fit in memory together.
    return write_pairs(block, TABLE_NAMES[0], next(in_order)), write_pairs(block, TABLE_NAMES[1], next(in_order))


def map_types(scratch: Path, widths: Tuple[int, int]) -> Tuple[Sentences, Sentences, np.ndarray]:
    """Memory-map the source types, the target types, and the length of each target type's target context."""
    source, target = (
        Sentences(
            map_array(scratch / f"{role}.types", smallest_dtype(width)),
            map_array(scratch / f"{role}.start", np.dtype(np.int64)),
        )
        for role, width in zip(("source", "target"), widths)
    )
    return source, target, map_array(scratch / "target.preceding", np.dtype(np.int32))


def tally_block(block: CountingBlock, source: Sentences, target: Sentences, preceding: np.ndarray) -> Iterator[Pairs]:
    """The pairs of a block in the sentences that have its occurrences: those of the bilingual table, then those of the
    monolingual one.

    Args:
        source, target, preceding: see :func:`map_types`
    """
    row_start = starts(block.occurrences)
    spans = group_contexts(target.ids, target.start, source.start, preceding, block.first, row_start)
    for table, contexts in enumerate((source.ids, target.ids)):
        width, capacity = block.widths[table], block.capacities[table]
        yield Pairs(*tally_contexts(row_start, spans[:, table], contexts, width, capacity, block.min_count)[:4])


def tally_row(block: CountingBlock, source: Sentences, target: Sentences, preceding: np.ndarray) -> Iterator[Pairs]:
    """As :func:`tally_block` for all sentences, for a single type that is in too many of them to be counted at once."""
    columns = [np.empty(0, smallest_dtype(width)) for width in block.widths]  # in the order of first occurrence
    counts = [np.zeros(width, np.int64) for width in block.widths]
    for first, last in divide_evenly(len(target.start) - 1, block.parts):
        ids = target.ids[target.start[first] : target.start[last]]
        occurrences = count_types(ids, block.widths[1])[block.first : block.first + 1]
        text = (source.between(first, last), target.between(first, last), preceding)
        for table, pairs in enumerate(tally_block(replace(block, occurrences=occurrences, min_count=1), *text)):
            new = pairs.columns[counts[table][pairs.columns] == 0]
            columns[table] = np.append(columns[table], new)
            counts[table] += pairs.column_counts
    for found, of_columns in zip(columns, counts):
        frequent = found[of_columns[found] >= block.min_count]
        yield Pairs(frequent, of_columns[frequent].astype(np.uint32), np.array([len(frequent)]), of_columns)


def write_pairs(block: CountingBlock, name: str, pairs: Pairs) -> Marginals:
    """Write the pairs of one block of the table ``name`` to files."""
    write_array(block.part_path(name, "columns"), pairs.columns)
    write_array(block.part_path(name, "pair_counts"), pairs.counts)
    return Marginals(pairs.sizes, pairs.column_counts)


def table_arrays(
    name: str, blocks: List[CountingBlock], marginals: Marginals, row_counts: np.ndarray
) -> Dict[str, StoredArray]:
    """The arrays of a table, joined from the files of its blocks."""
    row_start = starts(marginals.sizes)
    arrays = {
        "row_counts": StoredArray.from_array(row_counts),
        "column_counts": StoredArray.from_array(marginals.column_counts),
        "row_start": StoredArray.from_array(row_start),
    }
    column_dtype = smallest_dtype(len(marginals.column_counts))
    for array, dtype in (("columns", column_dtype), ("pair_counts", np.dtype(np.uint32))):
        paths = [block.part_path(name, array) for block in blocks]
        arrays[array] = StoredArray(dtype, int(row_start[-1]), map(partial(np.fromfile, dtype=dtype), paths))
    return arrays

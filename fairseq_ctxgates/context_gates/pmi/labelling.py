"""Which of the two contexts a target word owes itself to (Li et al. 2020, equation 7)."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.context_gates.pmi.counting import DEFAULT_MEMORY, NAMES, dictionary_digests, load_tables
from fairseq_ctxgates.context_gates.pmi.kernels import EOS, group_contexts, score_contexts
from fairseq_ctxgates.context_gates.pmi.sentences import (
    Sentences,
    count_types,
    map_split,
    row_blocks,
    starts,
    vocabulary_size,
)
from fairseq_ctxgates.context_gates.pmi.table import REMEDY, PMIOptions, PMITable, table_path
from fairseq_ctxgates.data.data_directory import Split, find_splits, fingerprint
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import scratch_folder, write_array

TOKENS_AT_ONCE = 1 << 20
TOKEN_BYTES = 4 * 8 + 2 * 8 + 8 + 4  # spans, scores, position, and label while it is decided


@dataclass(frozen=True)
class GateLabeller:
    """z* of equation 7: SOURCE where a target word's PMI with the source sentence is higher than its PMI with the
    target words before it, TARGET where it is not, IGNORE where both are −∞ (no pair was seen) and at end of sentence.
    """

    bilingual: PMITable
    monolingual: PMITable

    @property
    def options(self) -> PMIOptions:
        return self.bilingual.options

    def label(self, source_ids: np.ndarray, target_ids: np.ndarray, words: Optional[np.ndarray] = None) -> np.ndarray:
        """The labels of one sentence, see :meth:`label_sentences`."""
        source, target = (Sentences(np.asarray(ids), np.array([0, len(ids)])) for ids in (source_ids, target_ids))
        return self.label_sentences(source, target, words)

    def label_sentences(self, source: Sentences, target: Sentences, words: Optional[np.ndarray] = None) -> np.ndarray:
        """The labels of the target tokens of any number of sentences (one call for all is much faster).

        Args:
            words (target tokens): label these in place of the target's tokens, each where that token stands, after the
                same words: what a model predicted under forced decoding. End of sentence stays where it is.

        Returns:
            (target tokens) uint8
        """
        words = target.ids if words is None else np.asarray(words)
        rows, columns = len(self.bilingual.counts.row_counts), len(self.bilingual.counts.column_counts)
        for ids, size in ((source.ids, columns), (target.ids, rows), (words, rows)):
            if len(ids) and not 0 <= ids.min() <= ids.max() < size:
                raise ValueError(f"token ids from {ids.min()} to {ids.max()}, but the tables have {size} types")
        row_start = starts(count_types(words, rows))
        order, labels = self.label_rows(source, target, words, 0, row_start)
        ordered = np.empty_like(labels)
        ordered[order] = labels
        return ordered

    def label_rows(
        self, source: Sentences, target: Sentences, words: np.ndarray, first: int, row_start: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """The labels of the occurrences of the types from ``first`` on, grouped by type; ``row_start`` as in
        :func:`group_contexts`.

        Returns:
            their positions among the target tokens, int64; their labels, uint8
        """
        spans = group_contexts(words, target.start, source.start, np.empty(0, np.int32), first, row_start)
        mean = self.options.strategy == "mean"
        scores = [
            score_contexts(first, row_start, spans[:, side], contexts, table.counts, table.normalized, mean)[0]
            for side, contexts, table in ((0, source.ids, self.bilingual), (1, target.ids, self.monolingual))
        ]
        positions = spans[:, 1, 1].copy()
        labels = np.where(scores[0] > scores[1], SOURCE, TARGET).astype(np.uint8)
        labels[np.maximum(*scores) == -np.inf] = IGNORE
        labels[words[positions] == EOS] = IGNORE
        return positions, labels


@dataclass(frozen=True)
class Block:
    """Consecutive target types whose occurrences in a split are to be labelled by whoever is handed it.

    folder: where the tables are
    scratch: where the result goes
    first: the first of the types
    occurrences (types): how often each stands in the target
    """

    split: Split
    folder: Path
    scratch: Path
    first: int
    occurrences: np.ndarray

    def part_path(self, array: str) -> Path:
        return self.scratch / f"{self.first}.{array}"


def label_split(
    split: Split,
    folder: Path,
    memory: int = DEFAULT_MEMORY,
    workers: int = 1,
    executor: Optional[Executor] = None,
    show_progress: bool = False,
) -> np.ndarray:
    """The labels of all target tokens of a split, by the tables in ``folder``.

    Args:
        split: with the dictionaries of the tables (see :func:`check_split`)
        folder: of the tables; while labelling, also 9 bytes a token of scratch
        memory, workers, executor: as in :func:`count_tables`

    Returns:
        (target tokens) uint8
    """
    _, target = map_split(split)
    occurrences = count_types(target.ids, vocabulary_size(split, split.target_lang))
    number = max(1, min(8 * workers, len(target.ids) // TOKENS_AT_ONCE))
    rows = row_blocks(occurrences, occurrences * TOKEN_BYTES, memory / 2 / workers, number)
    labels = np.full(len(target.ids), IGNORE, np.uint8)
    bar = tqdm(
        total=len(labels), desc=f"labelling {split.name}", unit=" tokens", unit_scale=True, disable=not show_progress
    )
    with bar, scratch_folder(folder, "pmi") as scratch:
        # Another process may work elsewhere.
        where = (replace(split, data_dir=split.data_dir.absolute()), folder.absolute(), scratch.absolute())
        blocks = [Block(*where, first, occurrences[first:last]) for first, last in rows]
        for block, tokens in zip(blocks, (map if executor is None else executor.map)(label_block, blocks)):
            positions = np.fromfile(block.part_path("positions"), np.int64)
            labels[positions] = np.fromfile(block.part_path("labels"), np.uint8)
            bar.update(tokens)
    return labels


def label_block(block: Block) -> int:
    """Write positions and labels to the scratch folder, see :meth:`GateLabeller.label_rows`; returns how many."""
    split = block.split
    labeller = GateLabeller(*load_tables(block.folder, split.source_lang, split.target_lang, verify=False))
    source, target = map_split(split)
    positions, labels = labeller.label_rows(source, target, target.ids, block.first, starts(block.occurrences))
    write_array(block.part_path("positions"), positions)
    write_array(block.part_path("labels"), labels)
    return len(positions)


def load_labeller(data_dir: Path, source_lang: str, target_lang: str) -> GateLabeller:
    """The labeller whose tables lie in a data directory, after checking that they were made for its data.

    Raises:
        UserError: a table is missing or damaged, or was made with other dictionaries or other training data
    """
    labeller = GateLabeller(*load_tables(data_dir, source_lang, target_lang))
    metadata = labeller.bilingual.metadata
    splits = find_splits(data_dir, source_lang, target_lang)
    path = table_path(data_dir, NAMES[0], source_lang, target_lang)
    if dictionary_digests(splits[0]) != metadata["dictionaries"]:
        raise UserError(f"{path} was made with other dictionaries than {data_dir} holds; {REMEDY}")
    for split in splits:
        if split.name in metadata["train"] and fingerprint(split) not in metadata["train"][split.name]:
            raise UserError(f"{path} was made with other data than {data_dir}/{split.name} holds; {REMEDY}")
    return labeller

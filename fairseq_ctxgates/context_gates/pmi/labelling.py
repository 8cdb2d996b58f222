"""Which context, source or target, has the higher PMI with a target word (Li et al. 2020, equation 7)."""

from __future__ import annotations

import math
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Generator, Iterator, Optional, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET, GateLabels
from fairseq_ctxgates.context_gates.pmi.counting import DEFAULT_MEMORY, TABLE_NAMES, dictionary_digests, load_tables
from fairseq_ctxgates.context_gates.pmi.kernels import group_contexts, score_contexts
from fairseq_ctxgates.context_gates.pmi.sentences import (
    Sentences,
    TextFile,
    count_types,
    divide_rows,
    starts,
    text_files,
    vocabulary_size,
)
from fairseq_ctxgates.context_gates.pmi.table import LABEL_COMMAND, PMIOptions, PMITable, table_path
from fairseq_ctxgates.data.data_directory import EOS, Split, find_splits, fingerprint
from fairseq_ctxgates.data.side_stream_files import load_metadata
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import scratch_folder, write_array

SectionsOfLabels = Generator[Tuple[np.ndarray, np.ndarray], None, None]  # see label_split

TOKENS_AT_ONCE = 1 << 20
TOKEN_BYTES = 4 * 8 + 2 * 8 + 8 + 4  # spans, scores, position, temporary label


@dataclass(frozen=True)
class GateLabeller:
    """z* of equation 7 for target words.

    The label is SOURCE if the word's PMI with the source sentence is higher than its PMI with the preceding target
    words, otherwise TARGET. It is IGNORE if both are −∞ (no pair was seen), and for end of sentence.
    """

    bilingual: PMITable
    monolingual: PMITable

    @property
    def options(self) -> PMIOptions:
        """How the words of the two tables were counted."""
        return self.bilingual.options

    def label_sentences(self, source: Sentences, target: Sentences, words: Optional[np.ndarray] = None) -> np.ndarray:
        """The labels of the target tokens of several sentences; one call for all sentences is much faster.

        Args:
            words (target tokens): label these words instead of the target tokens, each in the context of the target
                token at its position: a model's predictions under forced decoding. End of sentence keeps its position.

        Returns:
            (target tokens) uint8

        Raises:
            ValueError: there are not as many words as target tokens, or the tables do not have one of the token ids
        """
        words = target.ids if words is None else np.asarray(words)
        if len(words) != len(target.ids):
            raise ValueError(f"{len(words)} words in the place of {len(target.ids)} target tokens")
        rows, columns = self.bilingual.shape
        for ids, types in ((source.ids, columns), (target.ids, rows), (words, rows)):
            check_ids(ids, types)
        row_start = starts(count_types(words, rows))
        positions, labels = self.label_types(source, target, words, 0, row_start)
        ordered = np.empty_like(labels)
        ordered[positions] = labels
        return ordered

    def label_types(
        self, source: Sentences, target: Sentences, words: np.ndarray, first: int, row_start: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """The labels of all occurrences of the types from ``first`` on, grouped by type.

        Args:
            row_start: see :func:`group_contexts`

        Returns:
            the positions of the occurrences in the target tokens, (occurrences,) int64; their labels, uint8
        """
        spans = group_contexts(words, target.start, source.start, np.empty(0, np.int32), first, row_start)
        mean = self.options.strategy == "mean"
        scores = [
            score_contexts(first, row_start, spans[:, language], contexts, table.counts, table.normalized, mean)[0]
            for language, contexts, table in ((0, source.ids, self.bilingual), (1, target.ids, self.monolingual))
        ]
        positions = spans[:, 1, 1].copy()  # a word stands where its target context ends
        labels = np.where(scores[0] > scores[1], np.uint8(SOURCE), np.uint8(TARGET))
        labels[np.maximum(*scores) == -np.inf] = IGNORE
        labels[words[positions] == EOS] = IGNORE
        return positions, labels


def check_ids(ids: np.ndarray, types: int) -> None:
    """Raise ValueError for token ids that a table with this number of types does not have, because compiled code looks
    them up without checks."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < types:
        raise ValueError(f"token ids from {ids.min()} to {ids.max()}, but the table has {types} types")


@dataclass(frozen=True)
class LabellingBlock:
    """A unit of work: consecutive target types whose occurrences in consecutive sentences of a split are labelled.

    Attributes:
        folder: folder of the tables
        scratch: folder for the result
        texts: source and target
        sentences: the first of the sentences, and the one after the last
        first: the first target type
        occurrences: how often each type occurs in the target of these sentences, (types,)
    """

    split: Split
    folder: Path
    scratch: Path
    texts: Tuple[TextFile, TextFile]
    sentences: Tuple[int, int]
    first: int
    occurrences: np.ndarray

    def part_path(self, array: str) -> Path:
        """The file of this block's ``positions`` or ``labels``."""
        return self.scratch / f"{self.sentences[0]}.{self.first}.{array}"


def label_split(
    split: Split,
    folder: Path,
    memory: int = DEFAULT_MEMORY,
    workers: int = 1,
    executor: Optional[Executor] = None,
) -> SectionsOfLabels:
    """Label all target tokens of a split with the tables in ``folder``, one section of the text after the other.

    Args:
        split: a split with the dictionaries of the tables (see :func:`check_split`)
        folder: folder of the tables; its file system also needs space for a scratch folder, 9 bytes for each token and
            16 for each sentence pair
        memory, workers, executor: as in :func:`count_tables`

    Yields:
        the labels of a section's target tokens, uint8; the number of tokens in each of its sentences
    """
    # Another process may have another working directory.
    split, folder = replace(split, data_dir=split.data_dir.absolute()), folder.absolute()
    with scratch_folder(folder, "pmi") as scratch:
        texts = text_files(split, scratch)
        start = texts[1].map().start
        bar = tqdm(total=int(start[-1]), desc=f"labelling {split.name}", unit=" tokens", unit_scale=True)
        sections = labelling_blocks(split, folder, scratch, texts, memory, workers)
        blocks = [block for section in sections for block in section]
        results = (map if executor is None else executor.map)(label_block, blocks)
        with bar:
            for section in sections:
                first, last = section[0].sentences
                begin = int(start[first])
                labels = np.full(int(start[last]) - begin, IGNORE, np.uint8)
                for block in section:
                    bar.update(next(results))
                    positions = np.fromfile(block.part_path("positions"), np.int64)
                    labels[positions - begin] = np.fromfile(block.part_path("labels"), np.uint8)
                yield labels, np.diff(start[first : last + 1])
                del labels  # to make room for those of the next section


def labelling_blocks(
    split: Split, folder: Path, scratch: Path, texts: Tuple[TextFile, TextFile], memory: int, workers: int
) -> Sequence[Sequence[LabellingBlock]]:
    """The blocks of consecutive sections of the text, which are as large as memory allows: the most frequent type of a
    section must fit in a process's share, and its labels in a quarter of the memory."""
    share, types = memory / 2 / workers, vocabulary_size(split, split.target_lang)
    sections = list(divide_text(texts[1].map(), types, share / TOKEN_BYTES, memory / 4))
    blocks = []
    for sentences, occurrences in sections:
        num_blocks = max(1, min(math.ceil(8 * workers / len(sections)), int(occurrences.sum()) // TOKENS_AT_ONCE))
        rows = divide_rows(occurrences, occurrences * TOKEN_BYTES, share, num_blocks)
        blocks.append(
            [
                LabellingBlock(split, folder, scratch, texts, sentences, first, occurrences[first:last])
                for first, last in rows
            ]
        )
    return blocks


def divide_text(
    text: Sentences, types: int, most_occurrences: float, most_tokens: float, first: int = 0, last: Optional[int] = None
) -> Iterator[Tuple[Tuple[int, int], np.ndarray]]:
    """Divide sentences into consecutive sections, by halves, until no type occurs more than ``most_occurrences`` times
    in a section, and no section has more than ``most_tokens`` tokens. A section of a single sentence may exceed both.

    Args:
        first, last: the first of the sentences, and the one after the last

    Yields:
        the first sentence of a section, and the one after its last; how often each type occurs in it
    """
    last = len(text.start) - 1 if last is None else last
    begin, end = int(text.start[first]), int(text.start[last])
    occurrences = count_types(text.ids[begin:end], types)
    if last - first <= 1 or (occurrences.max() <= most_occurrences and end - begin <= most_tokens):
        yield (first, last), occurrences
        return
    middle = int(np.searchsorted(text.start, (begin + end) // 2))
    middle = min(max(middle, first + 1), last - 1)
    for half in ((first, middle), (middle, last)):
        yield from divide_text(text, types, most_occurrences, most_tokens, *half)


def label_block(block: LabellingBlock) -> int:
    """Write positions and labels to the scratch folder, see :meth:`GateLabeller.label_types`; return their number."""
    split = block.split
    labeller = GateLabeller(*load_tables(block.folder, split.source_lang, split.target_lang, verify=False))
    source, target = (text.map().between(*block.sentences) for text in block.texts)
    positions, labels = labeller.label_types(source, target, target.ids, block.first, starts(block.occurrences))
    write_array(block.part_path("positions"), positions)
    write_array(block.part_path("labels"), labels)
    return len(positions)


def load_labeller(data_dir: Path, source_lang: str, target_lang: str) -> GateLabeller:
    """Load the tables of a data directory, and check that they were made from its data.

    Raises:
        UserError: a table is missing or damaged, or was made from other dictionaries or other training data, or in
            another way than the labels beside it
    """
    labeller = GateLabeller(*load_tables(data_dir, source_lang, target_lang))
    metadata = labeller.bilingual.metadata
    splits = find_splits(data_dir, source_lang, target_lang)
    both = f"{data_dir}/pmi.{{{','.join(TABLE_NAMES)}}}.{source_lang}-{target_lang}.npz"
    remedy = f"{LABEL_COMMAND} {data_dir} -s {source_lang} -t {target_lang}"
    if dictionary_digests(splits[0]) != metadata["dictionaries"]:
        raise UserError(f"{both} were made with other dictionaries than {data_dir} holds; {remedy}")
    source_types, target_types = (vocabulary_size(splits[0], lang) for lang in (source_lang, target_lang))
    for name, table, context_types in (
        (TABLE_NAMES[0], labeller.bilingual, source_types),
        (TABLE_NAMES[1], labeller.monolingual, target_types),
    ):
        if table.shape != (target_types, context_types):
            raise UserError(
                f"{table_path(data_dir, name, source_lang, target_lang)} is damaged (it has {table.shape} types, the "
                f"dictionaries have {(target_types, context_types)}); {remedy}"
            )
    for split in filter(Split.has_target, splits):  # others are not labelled; their labels may be of an earlier run
        labels = split.stream_prefix(GateLabels.name)
        made: Dict[str, Any] = load_metadata(labels) if Path(f"{labels}.json").exists() else {}
        if any(made.get(key, metadata[key]) != metadata[key] for key in ("options", "dictionaries", "train")):
            raise UserError(f"{both} are not those that {labels}.json was made with; {remedy}")
        if split.name in metadata["train"] and fingerprint(split) not in metadata["train"][split.name]:
            raise UserError(f"{both} were made with other data than {data_dir}/{split.name} holds; {remedy}")
    return labeller

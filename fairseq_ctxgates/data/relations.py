"""The factual relations of each source sentence (Li et al. 2022)."""

import atexit
import logging
from dataclasses import dataclass, field
from typing import AbstractSet, Any, ClassVar, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import LanguagePairDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_ctxgates.data.side_stream import SideStream, Split
from fairseq_ctxgates.errors import UserError

logger = logging.getLogger(__name__)

END_OF_TUPLE = -1
MaskChoice = ChoiceEnum(["pair", "word"])


@dataclass
class RelationsConfig(FairseqDataclass):
    """What the stream adds to the task's options."""

    load_relations: bool = field(
        default=False, metadata={"help": "load the relations that `ctxgates relations` extracted"}
    )
    relation_mask: Optional[MaskChoice] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "which words see each other in the relation encoding: those that stand in one tuple (pair), or all "
            "that stand in any (word); default: as the model was trained, which is pair unless something else is said"
        },
    )
    relation_extractor: Optional[str] = field(
        default=None,
        metadata={
            "help": "fairseq-interactive: extract the relations of each line with this extractor of `ctxgates "
            "relations` (corenlp-openie); default: lines have no relations"
        },
    )
    corenlp_url: Optional[str] = field(
        default=None,
        metadata={"help": "the CoreNLP server of --relation-extractor, or several, a,b; default: one is started"},
    )


class Relations(SideStream):
    """Adds ``net_input["relation_mask"]``, (batch, source length, source length), bool: whether position i may see
    position j in the relation encoding.

    A row of the stream holds the sentence's tuples (:func:`pack_tuples`).
    """

    name = "relation"
    made_by = "ctxgates relations {data} -s {source} -t {target} --extractor corenlp-openie"
    sides = ("source",)
    inputs: ClassVar[Tuple[str, ...]] = ("relation_mask",)
    Config = RelationsConfig

    @classmethod
    def is_wanted(cls, config: Any, required: AbstractSet[str]) -> bool:
        return bool(config.load_relations) or cls.name in required

    @classmethod
    def check_models(cls, config: Any, required: AbstractSet[str]) -> None:
        """Raise UserError where options about relations are given to models that read none, or contradict others."""
        if config.load_relations and cls.name not in required:
            raise UserError(
                "--load-relations needs an architecture that reads them: --arch fra_transformer, or --relation-fusion"
            )
        if cls.name in required and config.concatenate_preceding is not None:
            raise UserError("--concatenate-preceding does not go with relations, which are those of one sentence")

    @classmethod
    def check_rows(cls, rows: MMapIndexedDataset, split: Split) -> None:
        """Raise UserError unless every row is tuples of positions in its sentence, end of sentence left out."""
        super().check_rows(rows, split)
        sizes = np.array(rows.sizes)
        packed = np.fromfile(f"{split.stream_prefix(cls.name)}.bin", dtype=np.int32, count=int(sizes.sum()))
        row_of = np.repeat(np.arange(len(sizes)), sizes)
        source = split.load_side(split.source_lang)  # named, because its sizes are gone with it
        lengths = np.asarray(source.sizes)[row_of]
        is_wrong = (packed < END_OF_TUPLE) | (packed >= lengths - 1)
        last = np.cumsum(sizes)[sizes > 0] - 1
        is_wrong[last] |= packed[last] != END_OF_TUPLE
        if is_wrong.any():
            row = row_of[np.argmax(is_wrong)]
            raise UserError(
                f"{split.stream_prefix(cls.name)}.bin: row {row + 1} holds {unpack_tuples(np.array(rows[row]))}, which "
                f"are not tuples of positions from 0 in its sentence of {lengths[np.argmax(is_wrong)] - 1} tokens"
            )

    @classmethod
    def of_lines(cls, dataset: LanguagePairDataset, line_before: Optional[Tensor], config: Any) -> "Relations":
        """The relations that ``--relation-extractor`` finds in the lines; without it lines have none."""
        if config.relation_extractor is None:
            _warn_once("no --relation-extractor is given: every line is taken to have no relations")
            return cls([np.empty(0, np.int32)] * len(dataset), dataset, config)
        from fairseq_ctxgates.relations import relations_of_tokens

        symbols = dataset.src_dict.symbols
        lines = [[symbols[token] for token in line[:-1].tolist()] for line in dataset.src]
        found = relations_of_tokens(
            _extractor(config.relation_extractor, config.source_lang, config.corenlp_url), lines
        )
        return cls([pack_tuples(tuples) for tuples in found], dataset, config)

    def add_to_batch(self, batch: Dict[str, Any]) -> None:
        net_input = batch["net_input"]
        tokens = net_input["src_tokens"]
        lengths = tokens.ne(self.dataset.src_dict.pad()).sum(dim=1).tolist()
        size = tokens.size(1)
        mask = np.ones((len(lengths), size, size), dtype=bool)  # of a sentence without tuples, and at padding
        is_word_mask = str(self.config.relation_mask) == "word"
        for number, (index, length) in enumerate(zip(batch["id"].tolist(), lengths)):
            tuples = unpack_tuples(np.asarray(self.rows[index]))
            if tuples:
                start = size - length if self.dataset.left_pad_source else 0
                end = start + length
                mask[number, start:end, start:end] = relation_mask(tuples, length, is_word_mask)
        net_input["relation_mask"] = torch.from_numpy(mask)


def pack_tuples(tuples: Sequence[Sequence[int]]) -> np.ndarray:
    """The row of a sentence: the token positions of each tuple, from 0, and after each END_OF_TUPLE; (row length,)
    int32. Tuples without positions are left out."""
    packed = [position for positions in tuples if len(positions) for position in (*positions, END_OF_TUPLE)]
    return np.array(packed, dtype=np.int32)


def unpack_tuples(row: np.ndarray) -> List[List[int]]:
    """The tuples of a row, each as its token positions."""
    ends = np.flatnonzero(row == END_OF_TUPLE)
    return [positions[positions != END_OF_TUPLE].tolist() for positions in np.split(row, ends + 1)[: len(ends)]]


def relation_mask(tuples: Sequence[Sequence[int]], length: int, words: bool = False) -> np.ndarray:
    """Which positions of a sentence may see each other in its relation encoding (Li et al. 2022, section 3.1).

    Args:
        tuples: the token positions of each tuple, one tuple or more; positions beyond the sentence, of which
            ``--truncate-source`` left a part, count nothing
        length: how many tokens there are, end of sentence included
        words: every position of any tuple sees those of all, not of its own tuples only

    Returns:
        M, (length, length), bool; a position in no tuple sees itself only, as end of sentence does
    """
    mask = np.eye(length, dtype=bool)
    groups = [sorted({position for positions in tuples for position in positions})] if words else tuples
    for positions in groups:
        inside = [position for position in positions if position < length - 1]
        mask[np.ix_(inside, inside)] = True
    return mask


_EXTRACTORS: Dict[Tuple[str, str, Optional[str]], Any] = {}


def _extractor(name: str, language: str, urls: Optional[str]) -> Any:
    """The extractor of these options, which lives as long as the process: starting a server takes seconds."""
    key = (name, language, urls)
    if key not in _EXTRACTORS:
        from fairseq_ctxgates.relations import build_extractor

        extractor = build_extractor(name, language, urls.split(",") if urls else ())
        atexit.register(extractor.__exit__, None, None, None)
        _EXTRACTORS[key] = extractor.__enter__()
    return _EXTRACTORS[key]


_WARNINGS: set = set()


def _warn_once(message: str) -> None:
    if message not in _WARNINGS:
        _WARNINGS.add(message)
        logger.warning(message)

"""The side stream of the factual relations of each source sentence (Li, Zhu et al. 2022)."""

import functools
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import AbstractSet, Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import LanguagePairDataset
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_ctxgates.compat import MMapIndexedDataset
from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.data.data_directory import Split, find_splits, first_data_dir
from fairseq_ctxgates.data.side_stream import Batch, Rows, SideStream, TaskOptions
from fairseq_ctxgates.data.side_stream_files import load_metadata, verified_metadata
from fairseq_ctxgates.data.subwords import check_subwords
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.build import ExtractionOptions, ServerOptions, get_extractor
from fairseq_ctxgates.relations.extraction.extractor import relations_of_tokens
from fairseq_ctxgates.relations.mask import END_OF_TUPLE, pack_tuples, relation_mask, shift_mask

logger = logging.getLogger(__name__)

CHECKED_AT_ONCE = 100_000  # rows; all of a large corpus would take gigabytes
MaskChoice = ChoiceEnum(["pair", "word", "shifted"])


@dataclass
class RelationsConfig(FairseqDataclass):
    """The options that the stream adds to the task."""

    load_relations: bool = field(
        default=False, metadata={"help": "load the relations that `ctxgates relations` extracted"}
    )
    relation_mask: Optional[MaskChoice] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "which words see each other in the relation encoding: the words of one tuple (pair), the words of "
            "all tuples (word), or as a control the words a random number of tokens after those of one tuple "
            "(shifted); default: pair in training, then what the model was trained with"
        },
    )
    relation_extractor: Optional[str] = field(
        default=None,
        metadata={
            "help": "fairseq-interactive: extract the relations of each line with this extractor of `ctxgates "
            "relations` (corenlp-openie); default: lines have no relations"
        },
    )
    relation_language: Optional[str] = field(
        default=None,
        metadata={
            "help": "the language of the lines for --relation-extractor (default: that which the data's relations were "
            "extracted for, if it is known, or --source-lang)"
        },
    )
    corenlp_url: Optional[str] = field(
        default=None,
        metadata={"help": "the CoreNLP server of --relation-extractor, or several as a,b; default: one is started"},
    )


class Relations(SideStream[RelationsConfig]):
    """Adds ``net_input["relation_mask"]``, (batch, source length, source length), bool: whether position i may see
    position j in the relation encoding.

    A row of the stream holds the sentence's tuples (:func:`pack_tuples`).
    """

    name = "relation"
    made_by = "ctxgates relations {data} -s {source} -t {target}"
    languages = ("source",)
    names_source_positions = True
    inputs: ClassVar[Tuple[str, ...]] = ("relation_mask",)
    Config = RelationsConfig
    interactive_options = ("relation_extractor", "relation_language", "corenlp_url")
    saved_options: ClassVar[Mapping[str, bool]] = {"relation_mask": False}

    def __init__(
        self, rows: Rows, dataset: LanguagePairDataset, options: RelationsConfig, task_options: TaskOptions
    ) -> None:
        super().__init__(rows, dataset, options, task_options)
        self.sentences = dataset.src  # as they are before another stream lets words drop out

    @classmethod
    def is_wanted(cls, options: RelationsConfig, required: AbstractSet[str]) -> bool:
        return options.load_relations or cls.name in required

    @classmethod
    def values_to_save(cls, options: RelationsConfig, required: AbstractSet[str]) -> Dict[str, Optional[str]]:
        return {"relation_mask": (options.relation_mask or "pair") if cls.name in required else None}

    @classmethod
    def check_models(cls, options: RelationsConfig, task_options: TaskOptions, required: AbstractSet[str]) -> None:
        """Raise UserError if options about relations are given to models that read none, or contradict others."""
        if options.load_relations and cls.name not in required:
            raise UserError(
                "--load-relations needs a model that reads them: --arch fra_transformer, or --relation-fusion, and no "
                "--relation-ablation compare"
            )
        mask: Optional[str] = options.relation_mask
        if mask is not None and cls.name not in required:
            raise UserError(f"--relation-mask {mask} would do nothing: the model reads no relations")
        if options.relation_extractor is not None and cls.name not in required:
            raise UserError(f"--relation-extractor {options.relation_extractor} needs a model that reads relations")
        if options.relation_extractor is None:
            for name, what in (("relation_language", "language"), ("corenlp_url", "server")):
                value = getattr(options, name)
                if value is not None:
                    raise UserError(
                        f"{as_flag(name)} {value} is the {what} of an extractor: give --relation-extractor as well"
                    )

    @classmethod
    def command(cls, split: Split, data: Optional[str] = None) -> str:
        """The command with the options that another split's stream was made with. If there is no such stream: with
        CoreNLP's OpenIE for English, and with its dependency trees for other languages."""
        made = next((options for options in map(cls._options_of, cls.other_splits(split)) if options), {})
        is_english = split.source_lang.lower().startswith("en")
        extractor = made.get("extractor", "corenlp-openie" if is_english else "corenlp-dependencies")
        words = [super().command(split, data), "--extractor", extractor]
        if extractor == "jsonl":
            words += ["--relations", f"{split.name}=FILE"]
        if made.get("language", split.source_lang) != split.source_lang:
            words += ["--language", made["language"]]
        if made.get("remove_bpe", "subword_nmt") != "subword_nmt":
            words += ["--remove-bpe", made["remove_bpe"]]
        for name, value in made.get("properties", []):
            words += ["--corenlp-property", f"{name}={value}"]
        return " ".join(words)

    @classmethod
    def _options_of(cls, split: Split) -> Dict[str, Any]:
        """The options that a split's stream was made with, if the stream is whole; otherwise none."""
        options: Dict[str, Any] = verified_metadata(split.stream_prefix(cls.name)).get("options", {})
        return options

    @classmethod
    def check_rows(cls, rows: MMapIndexedDataset, split: Split) -> None:
        """Raise UserError unless every row holds tuples of positions in its sentence, end of sentence left out."""
        super().check_rows(rows, split)
        path = f"{split.stream_prefix(cls.name)}.bin"
        source = split.load_language(split.source_lang)  # in a variable, because its sizes are gone with it
        sizes, words = np.asarray(rows.sizes), np.asarray(source.sizes) - 1
        with open(path, "rb") as stream:
            for start in range(0, len(sizes), CHECKED_AT_ONCE):
                part = slice(start, start + CHECKED_AT_ONCE)
                packed = np.fromfile(stream, dtype=rows._index.dtype, count=int(sizes[part].sum()))
                wrong = _first_wrong_row(packed, sizes[part], words[part])
                if wrong is not None:
                    row = start + wrong
                    raise UserError(
                        f"{path}: row {row + 1} holds {rows[row].tolist()}, which are not tuples of positions in its "
                        f"sentence, from 0 to {words[row] - 1}, with {END_OF_TUPLE} after each"
                    )

    @classmethod
    def from_interactive_lines(
        cls,
        dataset: LanguagePairDataset,
        lines_before: Sequence[Tensor],
        options: RelationsConfig,
        task_options: TaskOptions,
        context_size: int = 1,
    ) -> "Relations":
        """The relations that ``--relation-extractor`` finds in the lines, with the options of the extraction from the
        data; without it lines have none."""
        if options.relation_extractor is None:
            _warn_that_there_are_none()
            return cls([pack_tuples([])] * len(dataset), dataset, options, task_options)
        symbols = dataset.src_dict.symbols
        lines = [[symbols[token] for token in line[:-1].tolist()] for line in dataset.src]
        extraction = _extraction_from_lines(options.relation_extractor, options.relation_language, task_options)
        check_subwords(dataset.src_dict, Path(f"dict.{task_options.source_lang}.txt"), extraction.remove_bpe)
        urls = tuple(options.corenlp_url.split(",")) if options.corenlp_url else ()
        extractor = get_extractor(extraction, ServerOptions(urls))
        tuples_of_lines = relations_of_tokens(extractor, lines, extraction.remove_bpe)
        return cls([pack_tuples(tuples) for tuples in tuples_of_lines], dataset, options, task_options)

    def add_to_batch(self, batch: Batch) -> None:
        """Add M_s of each sentence, (batch, source length, source length), bool, all true where it has no tuples."""
        tokens, padding = batch["net_input"]["src_tokens"], self.dataset.src_dict.pad()
        # From the batch itself: sentences may have been cut (--truncate-source), or padded to some multiple.
        lengths = tokens.ne(padding).sum(dim=1).tolist()
        size = tokens.size(1)
        masks = np.ones((len(lengths), size, size), dtype=bool)  # at padding too, so that there is something to see
        kind: Optional[str] = self.options.relation_mask
        for mask, index, length in zip(masks, batch["id"].tolist(), lengths):
            start = size - length if self.dataset.left_pad_source else 0
            place = slice(start, start + length)
            sentence_mask = relation_mask(np.asarray(self.rows[index]), length, kind == "word")
            if kind == "shifted":
                sentence = self.sentences[index]
                sentence_mask = shift_mask(sentence_mask, sentence[sentence.ne(padding)].numpy())
            mask[place, place] = sentence_mask
        batch["net_input"]["relation_mask"] = torch.from_numpy(masks)


def _first_wrong_row(packed: np.ndarray, sizes: np.ndarray, words: np.ndarray) -> Optional[int]:
    """The first of some rows that does not hold tuples of positions in its sentence; None: all do.

    Args:
        packed: the rows, one after another
        sizes: of each row
        words: how many tokens each sentence has without end of sentence
    """
    row_of = np.repeat(np.arange(len(sizes)), sizes)
    is_end = packed == END_OF_TUPLE
    is_wrong = (packed < END_OF_TUPLE) | (packed >= words[row_of])
    last = np.cumsum(sizes)[sizes > 0] - 1
    is_wrong[last] |= ~is_end[last]
    is_wrong |= is_end & np.concatenate([[True], is_end[:-1]])[: len(is_end)]  # a tuple without words
    return int(row_of[np.argmax(is_wrong)]) if is_wrong.any() else None


def _extraction_from_lines(extractor: str, language: Optional[str], task_options: TaskOptions) -> ExtractionOptions:
    """How an extractor is to read lines: as it read the data, as far as that is known."""
    languages = task_options.source_lang, task_options.target_lang
    made = _extraction_from_data(task_options.data, languages, extractor)
    of_translations = "sentencepiece" if task_options.post_process == "sentencepiece" else "subword_nmt"
    return ExtractionOptions(
        extractor,
        language or made.get("language", task_options.source_lang),
        made.get("remove_bpe", of_translations),
        tuple((name, value) for name, value in made.get("properties", [])),
    )


@functools.lru_cache(maxsize=None)
def _extraction_from_data(data: str, languages: Tuple[str, str], extractor: str) -> Dict[str, Any]:
    """The options with which the relations in the first data directory were extracted, without the CoreNLP properties
    if that was another extractor. Logs a warning in this case."""
    try:
        split = next(filter(Relations.exists, find_splits(first_data_dir(data), *languages)), None)
        metadata: Any = {} if split is None else load_metadata(split.stream_prefix(Relations.name))
    except UserError:  # a model in use needs dictionaries, but no data
        return {}
    made: Dict[str, Any] = dict(metadata.get("options", {}))
    found_by = made.get("extractor", "jsonl")
    if found_by == extractor:
        return made
    if found_by != "jsonl":
        logger.warning(
            f"the relations in {data} are of {found_by}, and those of the lines will be of {extractor}: give a model "
            f"that was trained on the first --relation-extractor {found_by}"
        )
    return {name: value for name, value in made.items() if name != "properties"}


@functools.lru_cache(maxsize=None)
def _warn_that_there_are_none() -> None:
    logger.warning(
        "no --relation-extractor is given: every line is taken to have no relations (analyses of text read the option "
        "from --model-overrides)"
    )

"""What the ways of reading preceding sentences share: their stream, its options, and random changes in training."""

import functools
import logging
import math
from dataclasses import dataclass, field, replace
from typing import AbstractSet, Any, ClassVar, Dict, List, Mapping, Optional, Sequence

import numpy as np
from fairseq.data import LanguagePairDataset
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor
from torch.utils.data import Dataset

from fairseq_ctxgates.compat import MMapIndexedDataset
from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.data.side_stream import SideStream, TaskOptions
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE, chain, read_preceding, shift
from fairseq_ctxgates.inter_sentence.training_draws import Draws, WithoutWords

logger = logging.getLogger(__name__)

ContextChoice = ChoiceEnum(["own", "shifted"])


@dataclass
class PrecedingSentencesConfig(FairseqDataclass):
    """The options of both ways of reading preceding sentences: through a gate, and concatenated with the source."""

    load_preceding_sentences: bool = field(
        default=False,
        metadata={"help": "load the preceding sentences that `ctxgates preceding-sentences` found"},
    )
    preceding_context: Optional[ContextChoice] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "which preceding sentences are given to a sentence that has any: its own (own), or as a control "
            "those of the sentence half the split away (shifted); default: own in training, then what the model was "
            "trained with"
        },
    )
    preceding_length_ratio: float = field(
        default=0.0,
        metadata={
            "help": "leave out training sentences whose source and preceding sentence differ in length by more than "
            "this factor (0: leave out none)"
        },
    )
    preceding_max_length: int = field(
        default=0,
        metadata={
            "help": "leave out training sentences whose source, target or preceding sentence is longer than this, in "
            "tokens (0: leave out none)"
        },
    )
    concatenate_preceding: Optional[str] = field(
        default=None,
        metadata={
            "help": "prepend the preceding sentence, followed by this separator, to each source; the separator is a "
            "word of the source dictionary",
        },
    )
    concatenate_number: Optional[int] = field(
        default=None,
        metadata={"help": "prepend this number of preceding sentences, each followed by the separator (default: 1)"},
    )
    concatenate_preceding_target: Optional[bool] = field(
        default=None,
        metadata={
            "help": "with --concatenate-preceding: prepend the translations of the preceding sentences to the target "
            "too: in training and scoring those of the data, in translation the model's own"
        },
    )
    concatenate_target_number: Optional[int] = field(
        default=None,
        metadata={
            "help": "prepend this number of translations with --concatenate-preceding-target (default: that of "
            "--concatenate-number, which may be 0 if this option is given)"
        },
    )
    ignore_preceding_target: bool = field(
        default=False,
        metadata={
            "help": "train on each sentence's own tokens alone: the translations that --concatenate-preceding-target "
            "prepends are read, but are not targets"
        },
    )
    preceding_references: bool = field(
        default=False,
        metadata={
            "help": "let each translation continue the references of the preceding sentences, in place of the model's "
            "own translations (fairseq-generate)"
        },
    )
    coword_dropout: float = field(
        default=0.0,
        metadata={
            "help": "in training, replace each word of a source, but not of its preceding sentences, by the unknown "
            "word with this probability, so that the model uses the preceding sentences (CoWord dropout; Fernandes et "
            "al. 2021)"
        },
    )
    sample_context_size: bool = field(
        default=False,
        metadata={
            "help": "in training, give each sentence a random number of its preceding sentences, from none to all that "
            "the model reads; if it reads another number of translations, one number up to the larger is drawn for both"
        },
    )


class PrecedingStream(SideStream[PrecedingSentencesConfig]):
    """The preceding sentences of each sentence, for a model that reads N of them.

    A row of the stream is the row of the preceding sentence in the same split, or empty. The sentences before that one
    follow from the rows of others, so that one stream serves every N. With ``--preceding-context shifted`` a sentence
    is given the preceding sentences of another; ``contexts`` holds the rows that are given.

    A subclass decides how the model reads them.

    Args:
        rows: for each sentence the indices of those before it, the nearest first, or ``NONE``, (sentences, N)
        sentences: what the indices point to (default: the dataset's sources)
    """

    name = "preceding"
    made_by = "ctxgates preceding-sentences {data} -s {source} -t {target} --documents {split}=FILE"
    languages = ("source",)
    Config = PrecedingSentencesConfig
    filters = ("preceding_length_ratio", "preceding_max_length")
    augmentations = ("coword_dropout", "sample_context_size")
    saved_options: ClassVar[Mapping[str, bool]] = {"preceding_context": True}

    def __init__(
        self,
        rows: np.ndarray,
        dataset: LanguagePairDataset,
        options: PrecedingSentencesConfig,
        task_options: TaskOptions,
        sentences: Optional[Sequence[Tensor]] = None,
    ) -> None:
        super().__init__(rows, dataset, options, task_options)
        self.draws: Optional[Draws] = None
        self.sentences = dataset.src if sentences is None else sentences
        self.source_lengths = np.array(dataset.src_sizes)
        if sentences is None and task_options.truncate_source:
            self.source_lengths = _lengths_when_truncated(dataset, task_options.max_source_positions)
        lengths = self.source_lengths if sentences is None else np.asarray(list(map(len, sentences)))
        self.target_lengths = None if dataset.tgt_sizes is None else np.array(dataset.tgt_sizes)
        self.contexts = shift(rows) if is_shifted(options) else rows
        # How much of each preceding sentence is read, (sentences, N).
        within = np.minimum(lengths[self.contexts], task_options.max_source_positions)
        self.context_lengths = np.where(self.contexts == NONE, 0, within)

    @classmethod
    def values_to_save(cls, options: PrecedingSentencesConfig, required: AbstractSet[str]) -> Dict[str, Optional[str]]:
        return {"preceding_context": "shifted" if is_shifted(options) else None}

    @classmethod
    def check_models(
        cls, options: PrecedingSentencesConfig, task_options: TaskOptions, required: AbstractSet[str]
    ) -> None:
        """Raise UserError if options about preceding sentences have invalid values, or are given to models that read
        none, neither by a gate nor concatenated."""
        is_used = cls.name in required or options.concatenate_preceding is not None
        if task_options.num_batch_buckets and (is_used or options.load_preceding_sentences):
            raise UserError("--num-batch-buckets cannot be combined with preceding sentences: leave it out")
        ratio, max_length = options.preceding_length_ratio, options.preceding_max_length
        if (ratio or max_length) and not is_used:
            raise UserError(
                "--preceding-length-ratio and --preceding-max-length need preceding sentences: an architecture that "
                "reads them (--arch isg_transformer), or --concatenate-preceding"
            )
        context: Optional[str] = options.preceding_context
        if context is not None and not is_used:
            raise UserError(f"--preceding-context {context} would do nothing: the model reads no preceding sentences")
        for name in cls.augmentations:
            if getattr(options, name) and not is_used:
                raise UserError(
                    f"{as_flag(name)} needs preceding sentences: an architecture that reads them (--arch "
                    f"isg_transformer), or --concatenate-preceding"
                )
        if not 0 <= options.coword_dropout < 1:
            raise UserError(f"--coword-dropout {options.coword_dropout}: it must be at least 0 and below 1")
        if ratio != 0 and not 1 <= ratio < math.inf:
            raise UserError(f"--preceding-length-ratio {ratio}: it must be 0 (off) or at least 1")
        if max_length < 0:
            raise UserError(f"--preceding-max-length {max_length}: it must be 0 (off) or at least 1")

    @classmethod
    def join(
        cls, parts: Sequence[MMapIndexedDataset], sample_ratios: Sequence[int], context_size: int = 1
    ) -> np.ndarray:
        """For each sentence of the joined dataset, the rows of the sentences before it, the nearest first, or ``NONE``,
        (sentences, context size)."""
        joined, start = [], 0
        for part, repeats in zip(parts, sample_ratios):
            rows = read_preceding(part)
            joined += [np.where(rows == NONE, NONE, rows + start)] * repeats
            start += len(rows) * repeats
        return chain(np.concatenate(joined), context_size)

    @classmethod
    def from_interactive_lines(
        cls,
        dataset: LanguagePairDataset,
        lines_before: Sequence[Tensor],
        options: PrecedingSentencesConfig,
        task_options: TaskOptions,
        context_size: int = 1,
    ) -> "PrecedingStream":
        """Each line follows the one before it; a line after an empty one starts a document."""
        if is_shifted(options):
            _warn_that_lines_have_their_own()
            options = replace(options, preceding_context=None)
        lines = [*lines_before, *dataset.src]
        is_empty = np.array([True, *(len(line) <= 1 for line in lines)])  # end of sentence at most
        rows = np.where(is_empty[:-1] | is_empty[1:], NONE, np.arange(-1, len(lines) - 1))
        return cls(chain(rows, context_size)[len(lines_before) :], dataset, options, task_options, sentences=lines)

    @classmethod
    def check_rows(cls, rows: MMapIndexedDataset, split: Split) -> None:
        """Raise UserError unless every row is empty or names one row before it."""
        super().check_rows(rows, split)
        index_path = f"{split.stream_prefix(cls.name)}.idx"
        if (rows.sizes > 1).any():
            raise UserError(f"{index_path}: row {np.argmax(rows.sizes > 1) + 1} names more than one preceding sentence")
        preceding = read_preceding(rows)
        wrong = np.flatnonzero((rows.sizes == 1) & ((preceding < 0) | (preceding >= np.arange(len(rows)))))
        if len(wrong):
            raise UserError(
                f"{index_path}: row {wrong[0] + 1} names row {preceding[wrong[0]] + 1} as its preceding sentence, "
                f"which is not one before it"
            )

    def training_mask(self) -> Optional[np.ndarray]:
        """What ``--preceding-length-ratio`` and ``--preceding-max-length`` keep. Lengths are without end of sentence,
        and those of whole preceding sentences, also where they are read in part. The ratio applies to real preceding
        sentences only, because otherwise every document would lose its first sentence."""
        ratio, max_length = self.options.preceding_length_ratio, self.options.preceding_max_length
        contexts = self.contexts[:, : self.context_lengths.shape[1]]
        whole_lengths = np.where(contexts == NONE, 0, self.source_lengths[contexts])
        source, target, preceding = (
            np.asarray(lengths) - 1 for lengths in (self.source_lengths, self.target_lengths, whole_lengths)
        )
        keep = np.ones(len(source), dtype=bool)
        if ratio:
            sources = source[:, None]
            is_similar = np.maximum(sources, preceding) <= ratio * np.minimum(sources, preceding)
            keep &= (is_similar | (self.context_lengths == 0)).all(axis=1)
        if max_length:
            keep &= np.maximum(np.maximum(source, target), preceding.max(axis=1, initial=0)) <= max_length
        return keep

    def begin_training(self) -> None:
        if self.options.coword_dropout or self.options.sample_context_size:
            self.draws = Draws(self.task_options.seed)
        if self.options.coword_dropout:
            self.drop_words()

    def drop_words(self) -> None:
        """Replace random words of the dataset's sources by the unknown word."""
        self.dataset.src = self.without_words(self.dataset.src)

    def without_words(self, sentences: Any) -> Dataset:
        """The sentences, with random words replaced by the unknown word, other words in each epoch."""
        assert self.draws is not None
        dictionary = self.dataset.src_dict
        return WithoutWords(sentences, self.options.coword_dropout, self.draws, dictionary.unk(), dictionary.eos())

    def set_epoch(self, epoch: int) -> None:
        if self.draws is not None:
            self.draws.epoch = epoch

    def preceding_rows(self, row: int) -> List[int]:
        """The rows of the sentences before a sentence, the nearest last; in training perhaps only some of them."""
        rows = [before for before in self.contexts[row] if before != NONE]
        if self.draws is not None and self.options.sample_context_size:
            rows = rows[: self.draws.context_size(row, self.rows.shape[1])]
        return rows[::-1]

    def source_rows(self, row: int) -> List[int]:
        """The rows of the preceding sentences whose sources are read, among those of :meth:`preceding_rows`."""
        return self.preceding_rows(row)

    def sources_before(self, row: int) -> List[Tensor]:
        """The sources of :meth:`source_rows`, (length,) each; a source longer than ``--max-source-positions`` is cut at
        its beginning, unless ``--truncate-source`` has cut it at its end."""
        cut = slice(-self.task_options.max_source_positions, None)
        return [self.sentences[before][cut] for before in self.source_rows(row)]


def _lengths_when_truncated(dataset: LanguagePairDataset, longest: int) -> np.ndarray:
    """The lengths of sources that ``--truncate-source`` has cut to the longest, end of sentence included. For a source
    that was not cut, fairseq gives a length that is one too high, so one that it gives as the longest may be shorter by
    one."""
    lengths = np.array(dataset.src_sizes)
    rows = np.flatnonzero(lengths >= longest)
    lengths -= 1
    lengths[rows] = [len(dataset.src[row]) for row in rows]
    return lengths


def is_shifted(options: PrecedingSentencesConfig) -> bool:
    """Whether sentences are given the preceding sentences of others."""
    return str(options.preceding_context) == "shifted"


@functools.lru_cache(maxsize=None)
def _warn_that_lines_have_their_own() -> None:
    logger.warning("--preceding-context shifted is for binarized data: every line is read with its own preceding ones")

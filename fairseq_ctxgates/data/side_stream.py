"""Side streams: one more row of data for every sentence pair of a binarized data directory.

fairseq loads a source and a target. A side stream lies beside them, as ``train.<stream>.de-en.{bin,idx}`` in fairseq's
own memory-mapped format, with a JSON file that says how it was made and a fingerprint of the data it was made for.
A new stream is a :class:`SideStream` that a mechanism names among its ``streams``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import fields
from pathlib import Path
from typing import (
    AbstractSet,
    Any,
    ClassVar,
    Dict,
    Generic,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
    Type,
    Union,
)

import numpy as np
from fairseq.data import ConcatDataset, Dictionary, LanguagePairDataset
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_ctxgates.compat import MMapIndexedDataset
from fairseq_ctxgates.configuration import Options
from fairseq_ctxgates.data.data_directory import Split, find_splits, fingerprint, load_rows
from fairseq_ctxgates.data.side_stream_files import check_digest, differing_fields, load_metadata
from fairseq_ctxgates.errors import UserError

Batch = Dict[str, Any]  # what fairseq's datasets collate: tensors, numbers and, as "net_input", the model's input
Rows = Union[MMapIndexedDataset, ConcatDataset]  # of one split, or of several that fairseq joined


class TaskOptions(Protocol):
    """The options of the task that a stream reads in addition to its own."""

    data: str
    source_lang: str
    target_lang: str
    max_source_positions: int
    truncate_source: bool
    num_batch_buckets: int
    max_target_positions: int
    seed: int
    post_process: Optional[str]


class PrecedingTarget(Protocol):
    """The target text that translations of sentences continue.

    Attributes:
        made_of_translations: whether that text is made of earlier translations, of the same pass over the data
    """

    made_of_translations: bool

    def tokens(self, batch: Batch, longest: int) -> Tensor:
        """The tokens before the translation of each sentence of a batch, (batch, length), padded on the right; at most
        the last ``longest`` of them."""

    def keep(self, batch: Batch, translations: Sequence[Tensor]) -> None:
        """Remember the translations of a batch, end of sentence included."""

    def begin_lines(self, count: int) -> None:
        """Begin a new list of ``count`` lines. In it, the last line of the previous list has number -1, and so on."""


class SideStream(ABC, Generic[Options]):
    """The rows of one stream for one dataset, in the dataset's order, and what they add to a batch.

    A subclass describes itself by class attributes.

    Attributes:
        name: its name in file names
        made_by: the command that makes it
        languages: which of "source" and "target" its rows depend on
        train_only: whether splits other than train can do without it
        inputs: what it adds to a batch's ``net_input``
        names_target_positions: whether its rows name positions in the dataset's own targets
        names_source_positions: whether its rows name positions in the dataset's own sources
        Config: the options that it adds to the task
        saved_options: those of its options that a checkpoint keeps because its model's input depends on them; for each,
            whether a model trained without it reads another input. Their default is None
        filters: those of its options that leave sentences out of training
        augmentations: those of its options that change the training data at random
        training_options: its other options that only training needs
        translation_options: its options that only fairseq-generate needs
        interactive_options: its options that only lines of text need, as fairseq-interactive reads them
        criterions: the names of the criterions that read it; empty if the model reads it

    Args:
        rows: the rows that were loaded
        dataset: the dataset as fairseq built it
        options: the stream's options
        task_options: the task's own options
    """

    name: ClassVar[str]
    made_by: ClassVar[str]
    languages: ClassVar[Tuple[str, ...]] = ("source", "target")
    train_only: ClassVar[bool] = False
    inputs: ClassVar[Tuple[str, ...]] = ()
    names_source_positions: ClassVar[bool] = False
    names_target_positions: ClassVar[bool] = False
    Config: ClassVar[Type[FairseqDataclass]]
    saved_options: ClassVar[Mapping[str, bool]] = {}
    filters: ClassVar[Tuple[str, ...]] = ()
    augmentations: ClassVar[Tuple[str, ...]] = ()
    training_options: ClassVar[Tuple[str, ...]] = ()
    translation_options: ClassVar[Tuple[str, ...]] = ()
    interactive_options: ClassVar[Tuple[str, ...]] = ()
    criterions: ClassVar[Tuple[str, ...]] = ()

    def __init__(self, rows: Rows, dataset: LanguagePairDataset, options: Options, task_options: TaskOptions) -> None:
        self.rows = rows
        self.dataset = dataset
        self.options = options
        self.task_options = task_options

    @classmethod
    @abstractmethod
    def is_wanted(cls, options: Options, required: AbstractSet[str]) -> bool:
        """Whether the options ask for this stream, or the models, which require the streams named in ``required``."""

    @classmethod
    def context_size(cls, options: Options) -> int:
        """How many preceding sentences the options ask for."""
        return 1

    @classmethod
    def changes_source(cls, options: Options) -> bool:
        """Whether the options ask the stream to replace the dataset's source sentences."""
        return False

    @classmethod
    def changes_target(cls, options: Options) -> bool:
        """Whether the options ask the stream to replace the targets of batches."""
        return False

    @classmethod
    def preceding_target(cls, options: Options, dictionary: Dictionary) -> Optional[PrecedingTarget]:
        """The text that translations continue in a new pass over the data, if the options ask for that."""
        return None

    @classmethod  # noqa: B027  most streams have nothing to check
    def check_translation(cls, options: Options) -> None:
        """Raise UserError where the options do not let translations continue others."""

    @classmethod  # noqa: B027  most streams have nothing to check
    def check_models(cls, options: Options, task_options: TaskOptions, required: AbstractSet[str]) -> None:
        """Raise UserError where the options contradict what the models require; ``required`` also names streams that an
        ablation leaves unread."""

    @classmethod
    def options_of_training(cls) -> Set[str]:
        """The names of the stream's options that have an effect in training only."""
        return {*cls.filters, *cls.augmentations, *cls.training_options}

    @classmethod
    def options_of_criterion(cls) -> Set[str]:
        """The names of the stream's options that have an effect only where there is a criterion, which is in training
        and validation."""
        return {option.name for option in fields(cls.Config)} - {"_name"} if cls.criterions else set()

    @classmethod
    def values_to_save(cls, options: Options, required: AbstractSet[str]) -> Dict[str, Optional[str]]:
        """The values of ``saved_options`` for a checkpoint of models that require the streams of these names."""
        return {name: getattr(options, name) for name in cls.saved_options}

    @classmethod
    def exists(cls, split: Split) -> bool:
        """Whether a split has this stream."""
        return Path(f"{split.stream_prefix(cls.name)}.idx").exists()

    @classmethod
    def load(
        cls,
        splits: Sequence[Split],
        sample_ratios: Sequence[int],
        dataset: LanguagePairDataset,
        options: Options,
        task_options: TaskOptions,
        context_size: int = 1,
    ) -> SideStream[Options]:
        """Load and check the stream of one split, or of several that fairseq joined to one dataset.

        Args:
            sample_ratios: how often fairseq repeats each split
            context_size: how many preceding sentences the models read, or the options ask for

        Raises:
            UserError: a stream is missing, damaged, or was made for other data than those beside it.
        """
        rows = cls.join([cls.load_split(split) for split in splits], sample_ratios, context_size)
        return cls(rows, dataset, options, task_options)

    @classmethod
    def join(cls, parts: Sequence[MMapIndexedDataset], sample_ratios: Sequence[int], context_size: int = 1) -> Rows:
        """The rows of several splits as those of one split, each repeated as fairseq repeats its data."""
        return parts[0] if len(parts) == 1 else ConcatDataset(parts, list(sample_ratios))

    @classmethod
    def from_interactive_lines(
        cls,
        dataset: LanguagePairDataset,
        lines_before: Sequence[Tensor],
        options: Options,
        task_options: TaskOptions,
        context_size: int = 1,
    ) -> Optional[SideStream[Options]]:
        """The stream of lines that fairseq-interactive reads, made from the lines; None if that is not possible.

        Args:
            dataset: the lines of a buffer
            lines_before: the token ids of the last lines before this buffer
            context_size: how many preceding sentences the models read, or the options ask for
        """
        return None

    @classmethod
    def command(cls, split: Split, data: Optional[str] = None) -> str:
        """The command that makes the stream of a split; ``data`` names its data directory, or several (a:b)."""
        languages = {"source": split.source_lang, "target": split.target_lang}
        return cls.made_by.format(data=data or split.data_dir, split=split.name, **languages)

    @classmethod
    def check_directories(cls, splits: Sequence[Split]) -> None:
        """Check, before the first epoch, the splits of several data directories, each of which is trained on in an
        epoch of its own.

        Raises:
            UserError: the stream of a split is missing, or was made in another way than that of the first split.
        """
        data = os.pathsep.join(dict.fromkeys(str(split.data_dir) for split in splits))
        for split in splits:
            try:
                if not cls.exists(split):
                    raise UserError(f"{split.stream_prefix(cls.name)}.idx not found")
                cls._check_made_alike(splits[0], split)
            except UserError as error:
                raise UserError(f"{error}; run: {cls.command(split, data)}") from error

    @classmethod
    def load_split(cls, split: Split) -> MMapIndexedDataset:
        """Load and check the rows of one split; errors as in :meth:`load`."""
        prefix = split.stream_prefix(cls.name)
        if not cls.exists(split):
            raise UserError(f"{prefix}.idx not found; run: {cls.command(split)}")
        try:
            metadata = load_metadata(prefix)
            if metadata.get("fingerprint") != fingerprint(split, cls.languages):
                raise UserError(f"{prefix}.bin was made for other data or dictionaries than {split.data_dir} holds")
            rows = load_rows(prefix)
            check_digest(prefix, metadata)
            for other in cls.other_splits(split):
                cls._check_made_alike(split, other)
            cls.check_rows(rows, split)
        except UserError as error:
            raise UserError(f"{error}; run: {cls.command(split)}") from error
        return rows

    @classmethod
    def other_splits(cls, split: Split) -> List[Split]:
        """The other splits that have this stream. Where the stream needs a target, a split that has lost it is none of
        them: the command that makes streams passes it over, so its old stream may be of another run."""
        splits = find_splits(split.data_dir, split.source_lang, split.target_lang)
        usable = [other for other in splits if other.has_target() or "target" not in cls.languages]
        return [other for other in usable if other.name != split.name and cls.exists(other)]

    @classmethod
    def _check_made_alike(cls, split: Split, other: Split) -> None:
        """Raise UserError where the streams of two splits were made in different ways, with other options or tables."""
        prefixes = split.stream_prefix(cls.name), other.stream_prefix(cls.name)
        differing = differing_fields(*map(load_metadata, prefixes))
        if differing:
            raise UserError(
                f"{prefixes[0]}.json and {prefixes[1]}.json were not made in one run of the command "
                f"({', '.join(differing)} differ)"
            )

    @classmethod
    def check_rows(cls, rows: MMapIndexedDataset, split: Split) -> None:
        """Raise UserError where the number of rows or their lengths do not fit the split's data."""
        sentences = len(split.load_language(split.source_lang))
        if len(rows) != sentences:
            prefix = split.stream_prefix(cls.name)
            raise UserError(f"{prefix}.idx has {len(rows)} rows for {sentences} sentences")

    def begin_training(self) -> None:  # noqa: B027  most streams change nothing
        """Called for training data, before :meth:`set_epoch`: the stream may now change its data at random."""

    def set_epoch(self, epoch: int) -> None:  # noqa: B027  most streams do not change
        """Begin an epoch. What is drawn at random depends on its number."""

    def training_mask(self) -> Optional[np.ndarray]:
        """Which sentences are trained on, a boolean for each; None: all."""
        return None

    def num_tokens(self, indices: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """How many tokens each of these sentences, which may be batched together, counts towards ``--max-tokens``,
        given what it counts without this stream."""
        return tokens

    def padded_lengths(self, indices: np.ndarray) -> Optional[np.ndarray]:
        """The lengths of the rows if they are padded to a tensor of their own, otherwise None. Batches bring together
        rows of similar length."""
        return None

    def rounds(self, indices: np.ndarray) -> Optional[List[np.ndarray]]:
        """The sentences in the groups in which they are to be translated, one group after the other; None if any order
        will do.

        Args:
            indices: the rows of the sentences, (sentences,)

        Returns:
            the same rows, (sentences of the group,) for each group
        """
        return None

    @abstractmethod
    def add_to_batch(self, batch: Batch) -> None:
        """Add this stream's tensors to a batch that fairseq's collater made, in the order of ``batch["id"]``."""

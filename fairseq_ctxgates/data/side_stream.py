"""Side streams: one more row of data for every sentence pair of a binarized data directory.

fairseq loads a source and a target. A side stream lies beside them, as ``train.<stream>.de-en.{bin,idx}`` in fairseq's
own memory-mapped format, with a JSON file that says how it was made and a fingerprint of the data it was made for.
A new stream is a :class:`SideStream` that a mechanism names among its ``streams``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import AbstractSet, Any, ClassVar, Dict, Generic, Mapping, Optional, Protocol, Sequence, Tuple, Type, Union

import numpy as np
from fairseq.data import ConcatDataset, LanguagePairDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_ctxgates.configuration import Options
from fairseq_ctxgates.data.data_directory import Split, digest_of_stream, fingerprint, load_rows
from fairseq_ctxgates.errors import UserError

Batch = Dict[str, Any]  # what fairseq's datasets collate: tensors, numbers and, as "net_input", the model's input
Rows = Union[MMapIndexedDataset, ConcatDataset]  # of one split, or of several that fairseq joined


class TaskOptions(Protocol):
    """What a stream reads of the task's options beside its own."""

    source_lang: str
    target_lang: str
    max_source_positions: int
    num_batch_buckets: int
    post_process: Optional[str]


class SideStream(ABC, Generic[Options]):
    """The rows of one stream for one dataset, in the dataset's order, and what they add to a batch.

    A subclass states the facts as class attributes.

    Attributes:
        name: in file names
        made_by: the command that makes it
        languages: what its rows depend on, of "source" and "target"
        train_only: whether other splits than train can do without it
        inputs: what it adds to a batch's ``net_input``
        changes_source: whether it replaces the dataset's source sentences
        names_source_positions: whether its rows name positions in the dataset's own sources
        Config: the options it adds to the task
        saved_options: of these, those that a checkpoint keeps because its model reads its input by them, and whether a
            model that was trained without such an option reads another input; their default is None
        filters: of these, those that leave sentences out of training
        interactive_options: of these, those that only fairseq-interactive reads
        criterions: the names of the criterions that read it; empty: the model reads it

    Args:
        rows: what was loaded
        dataset: the dataset as fairseq built it
        options: the stream's
        task: the task's
    """

    name: ClassVar[str]
    made_by: ClassVar[str]
    languages: ClassVar[Tuple[str, ...]] = ("source", "target")
    train_only: ClassVar[bool] = False
    inputs: ClassVar[Tuple[str, ...]] = ()
    changes_source: ClassVar[bool] = False
    names_source_positions: ClassVar[bool] = False
    Config: ClassVar[Type[FairseqDataclass]]
    saved_options: ClassVar[Mapping[str, bool]] = {}
    filters: ClassVar[Tuple[str, ...]] = ()
    interactive_options: ClassVar[Tuple[str, ...]] = ()
    criterions: ClassVar[Tuple[str, ...]] = ()

    def __init__(self, rows: Rows, dataset: LanguagePairDataset, options: Options, task: TaskOptions) -> None:
        self.rows = rows
        self.dataset = dataset
        self.options = options
        self.task = task

    @classmethod
    @abstractmethod
    def is_wanted(cls, options: Options, required: AbstractSet[str]) -> bool:
        """Whether the options ask for this stream, or the models, which require the streams of these names."""

    @classmethod  # noqa: B027  most streams have nothing to check
    def check_models(cls, options: Options, task: TaskOptions, required: AbstractSet[str]) -> None:
        """Raise UserError where the options contradict what the models require; ``required`` also has what an ablation
        leaves unread."""

    @classmethod
    def values_to_save(cls, options: Options, required: AbstractSet[str]) -> Dict[str, Optional[str]]:
        """The values of ``saved_options`` for a checkpoint of models that require the streams of these names."""
        return {name: getattr(options, name) for name in cls.saved_options}

    @classmethod
    def exists(cls, split: Split) -> bool:
        """Whether the stream lies beside a split."""
        return Path(f"{split.stream_prefix(cls.name)}.idx").exists()

    @classmethod
    def load(
        cls,
        splits: Sequence[Split],
        sample_ratios: Sequence[int],
        dataset: LanguagePairDataset,
        options: Options,
        task: TaskOptions,
    ) -> SideStream[Options]:
        """Load and check the stream of one split, or of several that fairseq joined to one dataset.

        Raises:
            UserError: a stream is missing, damaged, or was made for other data than what lies beside it.
        """
        return cls(cls.join([cls._load_split(split) for split in splits], sample_ratios), dataset, options, task)

    @classmethod
    def join(cls, parts: Sequence[MMapIndexedDataset], sample_ratios: Sequence[int]) -> Rows:
        """The rows of several splits as those of one, each split repeated as fairseq repeats its data."""
        return parts[0] if len(parts) == 1 else ConcatDataset(parts, list(sample_ratios))

    @classmethod
    def from_interactive_lines(
        cls, dataset: LanguagePairDataset, line_before: Optional[Tensor], options: Options, task: TaskOptions
    ) -> Optional[SideStream[Options]]:
        """The stream of lines that fairseq-interactive reads, made from the lines; None if it has nothing for them.

        Args:
            dataset: the lines of a buffer
            line_before: token ids of the last line of the buffer before, or None
        """
        return None

    @classmethod
    def _load_split(cls, split: Split) -> MMapIndexedDataset:
        prefix = split.stream_prefix(cls.name)
        remedy = "run: " + cls.made_by.format(
            data=split.data_dir, source=split.source_lang, target=split.target_lang, split=split.name
        )
        if not cls.exists(split):
            raise UserError(f"{prefix}.idx not found; {remedy}")
        try:
            metadata = read_metadata(prefix)
        except UserError as error:
            raise UserError(f"{error}; {remedy}") from error
        if metadata.get("fingerprint") != fingerprint(split, cls.languages):
            raise UserError(
                f"{prefix}.bin was made for other data or dictionaries than {split.data_dir} holds; {remedy}"
            )
        try:
            rows = load_rows(prefix)
            cls.check_rows(rows, split)
        except UserError as error:
            raise UserError(f"{error}; {remedy}") from error
        return rows

    @classmethod
    def check_rows(cls, rows: MMapIndexedDataset, split: Split) -> None:
        """Raise UserError where the number of rows or their lengths do not fit the split's data."""
        sentences = len(split.load_language(split.source_lang))
        if len(rows) != sentences:
            prefix = split.stream_prefix(cls.name)
            raise UserError(f"{prefix}.idx has {len(rows)} rows for {sentences} sentences")

    def training_mask(self) -> Optional[np.ndarray]:
        """Which sentences are trained on, a boolean for each; None: all."""
        return None

    def num_tokens(self, indices: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """How many tokens each of these sentences, which may be batched together, counts towards ``--max-tokens``,
        given what it counted without this stream."""
        return tokens

    def padded_lengths(self, indices: np.ndarray) -> Optional[np.ndarray]:
        """The lengths of the rows, if they are padded to a tensor of their own: batches then bring together rows of
        similar length. Else None."""
        return None

    @abstractmethod
    def add_to_batch(self, batch: Batch) -> None:
        """Add this stream's tensors to a batch that fairseq's collater made, in the order of ``batch["id"]``."""


def read_metadata(prefix: Path) -> Dict[str, Any]:
    """The content of a stream's JSON file.

    Raises:
        UserError: a file of the stream is missing, is not as it was written, or is not that of the others
    """
    try:
        with open(f"{prefix}.json", encoding="utf-8") as stream:
            metadata = json.load(stream)
    except (OSError, ValueError) as error:
        raise UserError(f"{prefix}.json cannot be read ({error})") from error
    if not isinstance(metadata, dict) or not {"bytes", "digest"} <= set(metadata):
        raise UserError(f"{prefix}.json has no digest of the stream: it is damaged, or an earlier version wrote it")
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    for path in (index, data):
        if not path.exists():
            raise UserError(f"{path} not found")
    found = {"bin": data.stat().st_size, "idx": index.stat().st_size}
    if metadata["bytes"] != found:
        raise UserError(f"{data} and {index} have {found['bin']} and {found['idx']} bytes, and not those written")
    if metadata["digest"] != digest_of_stream(index, data, metadata):
        raise UserError(f"{data}, its .idx or its .json is damaged, or they do not belong together")
    return metadata

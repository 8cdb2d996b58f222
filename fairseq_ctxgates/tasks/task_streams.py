"""The side streams of a task: which ones its options and its models ask for, and whether they go together."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import List, Optional, Sequence, Set, Type

import numpy as np
from fairseq.data import Dictionary, FairseqDataset, LanguagePairDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_ctxgates.compat import TranslationConfig
from fairseq_ctxgates.configuration import as_flag, options_from
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.data.side_stream import PrecedingTarget, SideStream
from fairseq_ctxgates.data.side_stream_dataset import SideStreamDataset
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanisms import all_streams
from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.models.input_options import Values

logger = logging.getLogger(__name__)

STREAMS = all_streams()
# The options that have an effect only in training, with a criterion, in fairseq-generate or in fairseq-interactive, and
# those that a checkpoint keeps.
TRAINING_OPTIONS = {name for stream in STREAMS for name in stream.options_of_training()}
CRITERION_OPTIONS = {name for stream in STREAMS for name in stream.options_of_criterion()}
TRANSLATION_OPTIONS = {name for stream in STREAMS for name in stream.translation_options}
INTERACTIVE_OPTIONS = {name for stream in STREAMS for name in stream.interactive_options}
SAVED_OPTIONS = {name: differs for stream in STREAMS for name, differs in stream.saved_options.items()}


class TaskStreams:
    """The streams that a task's options ask for, or that the task's models require.

    Args:
        cfg: the task's options, which may change
        models: the models that the task has built, to which more may be added; fairseq's own models read no streams
    """

    def __init__(self, cfg: FairseqDataclass, models: Sequence[BaseFairseqModel]) -> None:
        self.cfg = cfg
        self._models = models

    @property
    def models(self) -> List[ContextModel]:
        """The models that can read streams."""
        return [model for model in self._models if isinstance(model, ContextModel)]

    def options_of(self, stream: Type[SideStream]) -> FairseqDataclass:
        """A stream's options, taken from those of the task."""
        return options_from(stream.Config, self.cfg)

    def wanted(self) -> List[Type[SideStream]]:
        """The streams that the options ask for or the models require."""
        required = self.required()
        return [stream for stream in STREAMS if stream.is_wanted(self.options_of(stream), required)]

    def required(self) -> Set[str]:
        """The names of the streams that the models require, whatever the options say."""
        return {name for model in self.models for name in model.required_streams}

    def context_size(self) -> int:
        """How many preceding sentences the models read, or the options ask for."""
        of_models = (model.context_size for model in self.models)
        return max([*of_models, *(stream.context_size(self.options_of(stream)) for stream in STREAMS)])

    def input_options(self) -> Values:
        """The options that the models' input depends on, as checkpoints keep them."""
        required = self.required()
        saved = [stream.values_to_save(self.options_of(stream), required) for stream in STREAMS]
        return {name: value for values in saved for name, value in values.items()}

    def preceding_target(self, dictionary: Dictionary) -> Optional[PrecedingTarget]:
        """The text that translations continue in a new pass over the data, if they continue any."""
        contexts = (stream.preceding_target(self.options_of(stream), dictionary) for stream in self.wanted())
        return next((context for context in contexts if context is not None), None)

    def join_to(
        self, dataset: LanguagePairDataset, splits: Sequence[Split], name: str, is_train: bool
    ) -> FairseqDataset:
        """A dataset with its streams, or the dataset itself if no stream is wanted.

        Args:
            dataset: as fairseq loaded it
            splits: the splits that fairseq joined to it; fairseq repeats the first one ``upsample_primary`` times
            name: the name of the dataset in the log
            is_train: whether the dataset is trained on

        Raises:
            UserError: a stream is missing, does not fit the data, or leaves no sentence to train on.
        """
        of_first = self.cfg.upsample_primary if len(splits) > 1 else 1  # fairseq repeats a split only to join others
        sample_ratios = [of_first] + [1] * (len(splits) - 1)
        streams = []
        for kind in self.wanted():
            if is_train or not kind.train_only or all(map(kind.exists, splits)):
                options = self.options_of(kind)
                streams.append(kind.load(splits, sample_ratios, dataset, options, self.cfg, self.context_size()))
            else:
                logger.info(f"{name}: without the side stream {kind.name}, which only training needs")
        if not streams:
            return dataset
        mask = None
        if is_train:
            mask = _training_mask(streams, name)
            for stream in streams:
                stream.begin_training()
        logger.info(f"{name}: side streams {', '.join(stream.name for stream in streams)}")
        return SideStreamDataset(dataset, streams, mask)

    def check_directories(self, splits: Sequence[Split]) -> None:
        """If the training data are in several directories, raise UserError unless each stream exists for all of these
        splits and was made in the same way."""
        if len({split.data_dir for split in splits}) > 1:
            for stream in self.wanted():
                stream.check_directories(splits)

    def of_lines(self, dataset: LanguagePairDataset, lines_before: Sequence[Tensor]) -> List[SideStream]:
        """The streams that can be made from lines; see :meth:`SideStream.from_interactive_lines`."""
        size = self.context_size()
        made = (
            stream.from_interactive_lines(dataset, lines_before, self.options_of(stream), self.cfg, size)
            for stream in self.wanted()
        )
        return [stream for stream in made if stream is not None]

    def check(self, trains: bool) -> None:
        """Raise UserError where the options do not suit the models, or contradict each other.

        Args:
            trains: whether the models are trained; options from a finished training may ask for streams that an
                ablation does not read
        """
        known = self.required()
        if not trains:
            known |= {name for model in self.models for name in model.unread_streams}
        for stream in STREAMS:
            stream.check_models(self.options_of(stream), self.cfg, known)
        self._check_positions()

    def _check_positions(self) -> None:
        """Raise UserError if one stream changes the sentences in which another stream, or an alignment, names
        positions."""
        wanted = [(stream, self.options_of(stream)) for stream in self.wanted()]
        sources = [stream for stream, options in wanted if stream.changes_source(options)]
        targets = [stream for stream, options in wanted if stream.changes_target(options)]
        alignments = ["--load-alignments"] if self.cfg.load_alignments else []
        naming_sources = [f"the stream {stream.name!r}" for stream, _ in wanted if stream.names_source_positions]
        naming_targets = [f"the stream {stream.name!r}" for stream, _ in wanted if stream.names_target_positions]
        for changing, naming in ((sources, naming_sources + alignments), (targets, naming_targets + alignments)):
            if changing and naming:
                raise UserError(
                    f"{as_flag(next(iter(changing[0].saved_options), changing[0].name))} cannot be combined with "
                    f"{naming[0]}, whose positions are those of one sentence: leave it out"
                )

    def check_criterion(self, name: str) -> None:
        """Raise UserError if a wanted stream is read only by criterions other than this one."""
        for stream in self.wanted():
            if stream.criterions and name not in stream.criterions:
                options = " or ".join(
                    as_flag(option.name) for option in fields(stream.Config) if option.name != "_name"
                )
                raise UserError(
                    f"{options} would do nothing with --criterion {name}: give --criterion {stream.criterions[0]}, or "
                    f"leave the option out"
                )

    def check_translation(self) -> None:
        """Raise UserError where the options do not let translations continue others."""
        for stream in self.wanted():
            stream.check_translation(self.options_of(stream))


def task_option_names(*, has_criterion: bool, reads_lines: bool = False) -> Set[str]:
    """The names of the task's options that have an effect in a command that runs a trained model with the checkpoint's
    task.

    Args:
        has_criterion: whether the command has a criterion, as validation does
        reads_lines: whether it reads lines of text, as fairseq-interactive does
    """
    configs = (TranslationConfig, *(stream.Config for stream in STREAMS))
    names = {option.name for config in configs for option in fields(config)} - {"_name"}
    unread = TRAINING_OPTIONS | TRANSLATION_OPTIONS
    if not has_criterion:
        unread |= CRITERION_OPTIONS
    if not reads_lines:
        unread |= INTERACTIVE_OPTIONS
    return names - unread


def _training_mask(streams: Sequence[SideStream], split: str) -> Optional[np.ndarray]:
    """Which sentences are trained on because no stream leaves them out; None: all sentences."""
    masks = {stream: mask for stream, mask in ((s, s.training_mask()) for s in streams) if mask is not None}
    mask = np.logical_and.reduce(list(masks.values())) if masks else np.ones(1, dtype=bool)
    if mask.all():
        return None
    given = [(stream, [name for name in stream.filters if getattr(stream.options, name)]) for stream in masks]
    names = [as_flag(name) for stream, filters in given for name in filters or [stream.name]]
    what = " and ".join(dict.fromkeys(names))
    if not mask.any():
        raise UserError(f"{split}: {what} leave no sentence")
    logger.info(f"{split}: {(~mask).sum():,} of {len(mask):,} sentences left out ({what})")
    return mask

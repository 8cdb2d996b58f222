"""The translation task with side streams."""

import argparse
import ast
import functools
import logging
import math
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Type

import numpy as np
from fairseq import utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II
from torch import Tensor

from fairseq_ctxgates.data import STREAMS
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.data.side_stream_dataset import LineDataset, SideStreamDataset
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.models.warm_start import warm_start
from fairseq_ctxgates.relations.stream import Relations

logger = logging.getLogger(__name__)

# What a checkpoint keeps of the options, because its model reads its input that way; and whether a model that was
# trained without such an option reads another input.
_KEPT = {"concatenate_preceding": True, "relation_mask": False}


@dataclass
class _OwnConfig(TranslationConfig):
    # Read from the other groups of the configuration, not options of their own.
    model_overrides: str = II("common_eval.model_overrides")
    post_process: Optional[str] = II("common_eval.post_process")


ContextTranslationConfig = make_dataclass(
    "ContextTranslationConfig", [], bases=(*(stream.Config for stream in STREAMS), _OwnConfig)
)


@register_task("context_translation", dataclass=ContextTranslationConfig)
class ContextTranslationTask(TranslationTask):
    """Translation (fairseq's task and its options) with the side streams that the options ask for.

    The streams lie in the data directory beside source and target; see :mod:`fairseq_ctxgates.data.side_stream`.
    """

    def __init__(self, cfg: Any, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self._models: List[Any] = []
        self._readable_options = {option.name for config in _config_groups() for option in fields(config)}
        self._training_data: Any = None
        self._kept = [name for name in _KEPT if getattr(cfg, name) is None]  # the others are given
        self._trained_with: List[Dict[str, Optional[str]]] = []
        self._lines: Optional[LineDataset] = None
        self._last_line: Optional[Tensor] = None
        self._line_before: Optional[Tensor] = None

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split as fairseq does, and join the side streams to it.

        Raises:
            UserError: a stream is missing, or does not fit the data.
        """
        # fairseq hands over the options of training when it is done with training.
        is_train = split == self.cfg.train_subset and "task_cfg" not in kwargs
        parts = self._parts(split, epoch if is_train else 1, combine)
        streams = self._wanted_streams()
        if streams:
            for part in parts:  # before fairseq fails on damaged files with an error that names none
                part.load_language(self.cfg.source_lang)
        super().load_dataset(split, epoch, combine, **kwargs)
        dataset = self.datasets[split]
        sample_ratios = [self.cfg.upsample_primary] + [1] * (len(parts) - 1)
        loaded = [
            stream.load(parts, sample_ratios, dataset, self.cfg)
            for stream in streams
            if is_train or not stream.train_only or all(map(stream.exists, parts))
        ]
        if loaded:
            is_kept = self._kept_in_training(loaded, split) if is_train else None
            self.datasets[split] = SideStreamDataset(dataset, loaded, is_kept)
            logger.info(f"{split}: side streams {', '.join(stream.name for stream in loaded)}")
        if is_train:
            self._training_data = self.datasets[split]

    def _wanted_streams(self) -> List[Type[SideStream]]:
        return [stream for stream in STREAMS if stream.is_wanted(self.cfg, self._required_streams)]

    @property
    def _required_streams(self) -> Set[str]:
        """The names of the streams that the models at hand cannot do without, whatever the options say."""
        return {name for model in self._models for name in getattr(model, "required_streams", ())}

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint keeps of the task: how its model read concatenated sentences and relations."""
        mask = str(self.cfg.relation_mask or "pair") if Relations.name in self._required_streams else None
        kept = {"concatenate_preceding": self.cfg.concatenate_preceding, "relation_mask": mask}
        return {**super().state_dict(), **kept}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Give a checkpoint's model the input that it was trained on, unless the options say otherwise. fairseq calls
        this for every checkpoint that it translates with.

        Raises:
            UserError: of an ensemble's models one was trained on another input.
        """
        others = dict(state_dict)
        self._trained_with.append({name: others.pop(name, None) for name in _KEPT})
        super().load_state_dict(others)
        for name in self._kept:
            values = {trained[name] for trained in self._trained_with}
            if not _KEPT[name] and len(values) > 1:
                values.discard(None)
            if len(values) > 1:
                option = "--" + name.replace("_", "-")
                raise UserError(
                    f"--path: one model was trained with {option}, another without or with another value, and an "
                    f"ensemble reads one input"
                )
            setattr(self.cfg, name, values.pop())

    @staticmethod
    def _kept_in_training(streams: Sequence[SideStream], split: str) -> Optional[np.ndarray]:
        """Which sentences every stream keeps in training; None: all."""
        decisions = [kept for kept in (stream.is_kept() for stream in streams) if kept is not None]
        is_kept = np.logical_and.reduce(decisions) if decisions else np.ones(1, dtype=bool)
        if is_kept.all():
            return None
        if not is_kept.any():
            raise UserError(f"{split}: --preceding-length-ratio and --preceding-max-length leave no sentence")
        logger.info(
            f"{split}: {(~is_kept).sum():,} of {len(is_kept):,} sentences left out "
            f"(--preceding-length-ratio, --preceding-max-length)"
        )
        return is_kept

    def get_interactive_tokens_and_lengths(self, lines: List[str], encode_fn: Any) -> Any:
        """What fairseq-interactive, and nothing else, calls for each buffer: documents go on from one to the next."""
        self._line_before = self._last_line
        return super().get_interactive_tokens_and_lengths(lines, encode_fn)

    def build_dataset_for_inference(
        self, src_tokens: List[Tensor], src_lengths: List[int], constraints: Any = None
    ) -> Any:
        """Lines to translate, with the streams that can be made from them: those of a buffer of fairseq-interactive, or
        a list, which is a document of its own."""
        dataset = super().build_dataset_for_inference(src_tokens, src_lengths, constraints)
        streams = [stream.of_lines(dataset, self._line_before, self.cfg) for stream in self._wanted_streams()]
        self._last_line, self._line_before = src_tokens[-1], None
        self._lines = LineDataset(dataset, [stream for stream in streams if stream is not None])
        return self._lines

    def inference_step(self, generator: Any, models: Any, sample: Dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self._lines is not None:
            sample = self._lines.complete(sample)
        return super().inference_step(generator, models, sample, *args, **kwargs)

    def _parts(self, split: str, epoch: int, combine: bool) -> List[Split]:
        """The splits that fairseq joined to this one: itself, and with ``combine`` also ``valid1``, ``valid2``, ..."""
        paths = utils.split_paths(self.cfg.data)
        data_dir = Path(paths[(epoch - 1) % len(paths)])
        languages = self.cfg.source_lang, self.cfg.target_lang
        first = Split(data_dir, split, *languages)
        if not combine:
            return [first]
        others = (Split(data_dir, f"{split}{number}", *languages) for number in count(1))
        return [first, *takewhile(_is_there, others)]

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build a model as fairseq does, at the start of training from the checkpoint of ``--warm-start``.

        Raises:
            UserError: that checkpoint does not fit, or options contradict each other.
        """
        model = super().build_model(cfg, from_checkpoint)
        self._readable_options |= _model_options(cfg)
        self._models.append(model)
        if from_checkpoint:
            _ignore_unread_streams(model)
        # Sources that are made longer, by concatenation, are made no longer than every model can read.
        self.cfg.max_source_positions = int(min(self.cfg.max_source_positions, _max_source_positions(model)))
        checkpoint = getattr(cfg, "warm_start", None)
        if checkpoint and not from_checkpoint:
            warm_start(model, checkpoint)
        return model

    def can_reuse_epoch_itr(self, dataset: Any) -> bool:
        # Batches are seeded by the epoch in which they are made: made anew in each, they are the same in a resumed run.
        return False

    def get_batch_iterator(self, dataset: Any, *args: Any, required_batch_size_multiple: int = 1, **kwargs: Any) -> Any:
        if dataset is not self._training_data:
            # fairseq's main drops what exceeds a multiple of it (its issue 5036); every line shall be translated.
            required_batch_size_multiple = 1
        kwargs["required_batch_size_multiple"] = required_batch_size_multiple
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def build_criterion(self, cfg: Any, *others: Any, **kwargs: Any) -> Any:
        self._readable_options |= set(cfg)
        self._check_options()
        criterion = super().build_criterion(cfg, *others, **kwargs)
        for model in self._models:
            if hasattr(criterion, "check_model"):
                criterion.check_model(model)
        return criterion

    def build_generator(self, models: Any, args: Any, *others: Any, **kwargs: Any) -> Any:
        if self._models:  # else it is the generator of --eval-bleu, which is built with the first model
            self._check_options()
        return super().build_generator(models, args, *others, **kwargs)

    def _check_options(self) -> None:
        """Raise UserError where the options contradict what the models are."""
        self.refuse_unread_overrides(ast.literal_eval(self.cfg.model_overrides or "{}"))
        unread = {name for model in self._models for name in getattr(model, "unread_streams", ())}
        for stream in STREAMS:
            stream.check_models(self.cfg, self._required_streams | unread)

    def refuse_unread_overrides(self, overrides: Iterable[str]) -> None:
        """Raise UserError for a key of ``--model-overrides`` that nothing reads, which fairseq ignores: a mistyped
        ablation would run as the full model."""
        unread = sorted(set(overrides) - self._readable_options)
        if unread:
            raise UserError(f"--model-overrides: nothing reads {', '.join(map(repr, unread))}; check the spelling")


def _is_there(split: Split) -> bool:
    try:
        split.text_prefix(split.source_lang)
    except UserError:
        return False
    return True


def _max_source_positions(model: Any) -> float:
    positions = model.max_positions()
    return positions[0] if isinstance(positions, tuple) else math.inf  # others have no source of their own


def _ignore_unread_streams(model: Any) -> None:
    """Let a model stand in an ensemble beside one that reads streams which it does not know: both are given the same
    batch."""
    read = getattr(model, "required_streams", ())
    names = {name for stream in STREAMS if stream.name not in read for name in stream.inputs}

    def without_streams(forward: Callable) -> Callable:
        @functools.wraps(forward)
        def forward_without_streams(*args: Any, **net_input: Any) -> Any:
            return forward(*args, **{name: value for name, value in net_input.items() if name not in names})

        return forward_without_streams

    for module in filter(None, (model, getattr(model, "encoder", None))):
        module.forward = without_streams(module.forward)


def _config_groups() -> List[Any]:
    """The dataclasses of every part of fairseq's configuration but the model."""
    groups = [group.type for group in fields(FairseqConfig) if isinstance(group.type, type)]
    return [FairseqConfig, ContextTranslationConfig, *filter(is_dataclass, groups)]


def _model_options(cfg: Any) -> Set[str]:
    """The names of the options that a model reads."""
    if not isinstance(cfg, argparse.Namespace):
        return set(cfg)
    # A model without a dataclass: its checkpoint's namespace also holds whatever --model-overrides put there.
    arch: Optional[str] = getattr(cfg, "arch", None) or getattr(cfg, "_name", None)
    parser = argparse.ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return set(vars(parser.parse_args([])))

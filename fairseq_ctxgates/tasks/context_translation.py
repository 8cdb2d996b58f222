"""The translation task with side streams."""

import argparse
import ast
import logging
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

from fairseq import utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II

from fairseq_ctxgates.data import STREAMS
from fairseq_ctxgates.data.side_stream import Split
from fairseq_ctxgates.data.side_stream_dataset import SideStreamDataset
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.warm_start import warm_start

logger = logging.getLogger(__name__)


@dataclass
class _OwnConfig(TranslationConfig):
    # Read from the other groups of the configuration, not options of their own.
    model_overrides: str = II("common_eval.model_overrides")


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

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split as fairseq does, and join the side streams to it.

        Raises:
            UserError: a stream is missing on the training split, or does not fit the data.
        """
        is_train = split == self.cfg.train_subset
        parts = self._parts(split, epoch if is_train else 1, combine)
        if any(stream.is_wanted(self.cfg) for stream in STREAMS):
            for part in parts:  # before fairseq fails on damaged files with an error that names none
                part.load_side(self.cfg.source_lang)
        super().load_dataset(split, epoch, combine, **kwargs)
        sample_ratios = [self.cfg.upsample_primary] + [1] * (len(parts) - 1)
        streams = [
            stream.load(parts, sample_ratios)
            for stream in STREAMS
            if stream.is_wanted(self.cfg) and (is_train or all(map(stream.exists, parts)))
        ]
        if streams:
            self.datasets[split] = SideStreamDataset(self.datasets[split], streams)
            logger.info(f"{split}: side streams {', '.join(stream.name for stream in streams)}")

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
        model = super().build_model(cfg, from_checkpoint)
        self._readable_options |= _model_options(cfg)
        self._models.append(model)
        checkpoint = getattr(cfg, "warm_start", None)
        if checkpoint and not from_checkpoint:
            warm_start(model, checkpoint)
        return model

    def can_reuse_epoch_itr(self, dataset: Any) -> bool:
        # Batches are seeded by the epoch in which they are made: made anew in each, they are the same in a resumed run.
        return False

    def get_batch_iterator(self, dataset: Any, *args: Any, required_batch_size_multiple: int = 1, **kwargs: Any) -> Any:
        if dataset is not self.datasets.get(self.cfg.train_subset):
            # fairseq's main drops what exceeds a multiple of it (its issue 5036); every line shall be translated.
            required_batch_size_multiple = 1
        kwargs["required_batch_size_multiple"] = required_batch_size_multiple
        return super().get_batch_iterator(dataset, *args, **kwargs)

    def build_criterion(self, cfg: Any, *others: Any, **kwargs: Any) -> Any:
        self._readable_options |= set(cfg)
        self._refuse_unread_overrides()
        criterion = super().build_criterion(cfg, *others, **kwargs)
        for model in self._models:
            if hasattr(criterion, "check_model"):
                criterion.check_model(model)
        return criterion

    def build_generator(self, models: Any, args: Any, *others: Any, **kwargs: Any) -> Any:
        if self._models:  # else it is the generator of --eval-bleu, which is built with the first model
            self._refuse_unread_overrides()
        return super().build_generator(models, args, *others, **kwargs)

    def _refuse_unread_overrides(self) -> None:
        """fairseq ignores a key of ``--model-overrides`` that nothing reads: a mistyped ablation would run as the full
        model."""
        overrides: Dict[str, Any] = ast.literal_eval(self.cfg.model_overrides or "{}")
        unread = sorted(set(overrides) - self._readable_options)
        if unread:
            raise UserError(f"--model-overrides: nothing reads {', '.join(map(repr, unread))}; check the spelling")


def _is_there(split: Split) -> bool:
    try:
        split.side_prefix(split.source_lang)
    except UserError:
        return False
    return True


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

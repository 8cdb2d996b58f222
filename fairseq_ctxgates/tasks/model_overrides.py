"""The check of ``--model-overrides``: fairseq ignores its keys that nothing reads."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import AbstractSet, Collection, Iterable, Mapping, NamedTuple, Optional, Set

from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel

from fairseq_ctxgates.compat import ARCH_MODEL_REGISTRY
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanisms import all_mechanisms
from fairseq_ctxgates.models.warm_start import WarmStartConfig


class ModelOptions(NamedTuple):
    """The names of a trained model's options and, for options that have no effect in this model, the message for the
    user."""

    names: Set[str]
    unread: Mapping[str, str]

    @classmethod
    def of(cls, model: BaseFairseqModel, cfg: FairseqDataclass) -> ModelOptions:
        """The options of a model, of any class, that was built from this configuration."""
        return cls(_option_names(cfg) - _options_of_training(), getattr(model, "unread_options", {}))

    def reads(self, name: str) -> bool:
        """Whether the option of this name has an effect in the model."""
        return name in self.names and name not in self.unread


def _options_of_training() -> Set[str]:
    """The options that a trained model does not read: its name, which is settled by its parameters, and the options for
    the start of training."""
    initial_options = (name for mechanism in all_mechanisms() for name in mechanism.initial_options)
    return {"_name", "arch", *(option.name for option in fields(WarmStartConfig)), *initial_options}


def _option_names(cfg: FairseqDataclass) -> Set[str]:
    if not isinstance(cfg, argparse.Namespace):
        return set(cfg)
    # A model without a dataclass: its checkpoint's namespace also has every key of --model-overrides.
    arch: Optional[str] = getattr(cfg, "arch", None) or getattr(cfg, "_name", None)
    parser = argparse.ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return set(vars(parser.parse_args([])))


def refuse_unread_overrides(
    overrides: Iterable[str], models: Collection[ModelOptions], others: AbstractSet[str] = frozenset()
) -> None:
    """Raise UserError for a key of ``--model-overrides`` that none of the models reads: with a mistyped ablation, the
    full model would run.

    Args:
        others: further options that are read from ``--model-overrides``
    """
    for key in overrides:
        if key not in others and not any(model.reads(key) for model in models):
            reasons = [model.unread[key] for model in models if key in model.unread]
            unknown = f"nothing reads {key!r} from there: check the spelling, or give it as an option of its own"
            raise UserError(f"--model-overrides: {reasons[0] if reasons else unknown}")

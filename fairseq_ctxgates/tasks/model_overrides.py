"""The check of ``--model-overrides``, of which fairseq ignores what nothing reads."""

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
    """The names of a trained model's options, and of those among them that do nothing in this model, what the user is
    told."""

    names: Set[str]
    unread: Mapping[str, str]

    @classmethod
    def of(cls, model: BaseFairseqModel, cfg: FairseqDataclass) -> ModelOptions:
        """Those of a model of any class that was built from a configuration."""
        return cls(_option_names(cfg) - _options_of_training(), getattr(model, "unread_options", {}))

    def reads(self, name: str) -> bool:
        """Whether the model does something with the option of this name."""
        return name in self.names and name not in self.unread


def _options_of_training() -> Set[str]:
    """What a trained model does not read: its name, which its parameters decide, and the options of how it began."""
    of_mechanisms = (name for mechanism in all_mechanisms() for name in mechanism.initial_options)
    return {"_name", "arch", *(option.name for option in fields(WarmStartConfig)), *of_mechanisms}


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
    """Raise UserError for a key of ``--model-overrides`` that none of the models reads: with a mistyped ablation the
    full model would run.

    Args:
        others: further options that are read from there
    """
    for key in overrides:
        if key not in others and not any(model.reads(key) for model in models):
            reasons = [model.unread[key] for model in models if key in model.unread]
            unknown = f"nothing reads {key!r} from there: check the spelling, or give it as an option of its own"
            raise UserError(f"--model-overrides: {reasons[0] if reasons else unknown}")

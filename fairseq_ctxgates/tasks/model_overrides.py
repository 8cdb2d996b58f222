"""The check of ``--model-overrides``, of which fairseq ignores unknown keys."""

from __future__ import annotations

import argparse
from dataclasses import fields, is_dataclass
from typing import Iterable, Optional, Set

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_ctxgates.errors import UserError


def options_of_fairseq() -> Set[str]:
    """The names of the options in every part of fairseq's configuration but model, task and criterion."""
    groups = [group.type for group in fields(FairseqConfig) if isinstance(group.type, type)]
    return {option.name for config in (FairseqConfig, *filter(is_dataclass, groups)) for option in fields(config)}


def options_of_model(cfg: FairseqDataclass) -> Set[str]:
    """The names of the options that a model reads."""
    if not isinstance(cfg, argparse.Namespace):
        return set(cfg)
    # A model without a dataclass: its checkpoint's namespace also has every key of --model-overrides.
    arch: Optional[str] = getattr(cfg, "arch", None) or getattr(cfg, "_name", None)
    parser = argparse.ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return set(vars(parser.parse_args([])))


def refuse_unread(overrides: Iterable[str], readable: Set[str]) -> None:
    """Raise UserError for a key of ``--model-overrides`` that nothing reads: a mistyped ablation would run as the full
    model."""
    unread = sorted(set(overrides) - readable)
    if unread:
        raise UserError(f"--model-overrides: nothing reads {', '.join(map(repr, unread))}; check the spelling")

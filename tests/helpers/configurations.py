"""fairseq composes the configuration of a command with Hydra, in up to two and a half seconds: longer than many tests
train. What Hydra makes of the choices on a command line (the task, the model, ...) is kept, and Hydra's own code
sets the values. What OmegaConf makes of a model's dataclass is kept too, as that takes a third of the time in which
fairseq builds a tiny model, and OmegaConf's own code merges the values."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple
from unittest import mock

from fairseq.dataclass import utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

compose_anew = utils.compose
merge_anew = OmegaConf.merge
_composed: Dict[Tuple[str, ...], DictConfig] = {}
_structured: Dict[Tuple[type, str], DictConfig] = {}


def compose(config_name: Optional[str], overrides: Sequence[str], strict: Optional[bool] = None) -> DictConfig:
    """What ``hydra.experimental.compose`` gives for fairseq's own configuration."""
    choices = tuple(override for override in overrides if "." not in override.partition("=")[0])
    if choices not in _composed:
        _composed[choices] = compose_anew(config_name, overrides=list(choices), strict=strict)
    configuration = copy.deepcopy(_composed[choices])
    values = [parsed for override in overrides if override not in choices for parsed in parse(override)]
    ConfigLoaderImpl._apply_overrides_to_config(values, configuration)
    return configuration


@lru_cache(maxsize=None)
def parse(override: str) -> List[Override]:
    parsed: List[Override] = OverridesParser.create().parse_overrides([override])
    return parsed


def merge(first: Any, *others: Any) -> Any:
    """What ``OmegaConf.merge`` gives."""
    if is_dataclass(first) and not isinstance(first, type):
        key = (type(first), repr(first))
        if key not in _structured:
            _structured[key] = OmegaConf.structured(first)
        first = _structured[key]
    return merge_anew(first, *others)


@contextmanager
def composing_once() -> Iterator[None]:
    """Let fairseq compose the configurations of its commands and models so."""
    with mock.patch.object(utils, "compose", compose), mock.patch.object(OmegaConf, "merge", merge):
        yield

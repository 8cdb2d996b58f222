"""Named architectures: the options of a model with other defaults."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from typing import Dict, Mapping, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

from fairseq_ctxgates.mechanism import Defaults
from fairseq_ctxgates.mechanisms import all_mechanisms
from fairseq_ctxgates.models.context_model import ContextModel


def register_presets(model: Type[ContextModel], backbone: str, plain: str, sizes: Mapping[str, Defaults]) -> None:
    """Register the plain architecture of a backbone, and those that its mechanisms add, in every size.

    Each is a registered model with a dataclass of its own, so that ``model: {_name: rcg_transformer_big}`` in a YAML
    file means the same as ``--arch rcg_transformer_big``.

    Args:
        model: the class of all of them
        plain: the name of the architecture without mechanisms
        sizes: for each suffix of a name, the defaults that differ
    """
    architectures: Dict[str, Defaults] = {plain: {}}
    for mechanism in all_mechanisms():
        architectures.update(mechanism.architectures.get(backbone, {}))
    for name, options in architectures.items():
        for suffix, dimensions in sizes.items():
            arch = f"{name}{suffix}"
            architecture = type(arch, (model,), {"__doc__": model.__doc__})
            register_model(arch, dataclass=preset(arch, model.Config, {**options, **dimensions}))(architecture)
            globals()[arch] = architecture  # where pickle looks for it


def preset(name: str, config: Type[FairseqDataclass], defaults: Defaults) -> Type[FairseqDataclass]:
    """A dataclass of the same options with other defaults."""
    changed = [
        (option.name, option.type, field(default=defaults[option.name], metadata=option.metadata))
        for option in fields(config)
        if option.name in defaults
    ]
    return make_dataclass(name, changed, bases=(config,))

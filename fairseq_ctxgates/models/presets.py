"""Named architectures: the options of a model with other defaults."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from functools import cached_property
from typing import Dict, Mapping, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf

from fairseq_ctxgates.compat import MODEL_DATACLASS_REGISTRY
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
            _register(arch, architecture, preset(arch, model.Config, {**options, **dimensions}))
            globals()[arch] = architecture  # where pickle looks for it


def preset(name: str, config: Type[FairseqDataclass], defaults: Defaults) -> Type[FairseqDataclass]:
    """A dataclass of the same options with other defaults; how it is compared, printed and described is inherited."""
    changed = [
        (option.name, option.type, field(default=defaults[option.name], metadata=option.metadata))
        for option in fields(config)
        if option.name in defaults
    ]
    return make_dataclass(name, changed, bases=(config,), namespace={"__doc__": config.__doc__}, eq=False, repr=False)


class PresetNode(ConfigNode):
    """The entry of an architecture in Hydra's store, whose configuration is built when it is read.

    A command reads one of them. To build them all takes longer than all else that importing this package does, and
    Hydra copies all that is built, for every command.
    """

    def __init__(self, arch: str, config: Type[FairseqDataclass], entry: ConfigNode) -> None:
        self.arch, self.config = arch, config
        self.name, self.group, self.package, self.provider = entry.name, entry.group, entry.package, entry.provider

    @cached_property
    def node(self) -> DictConfig:  # type: ignore[override]
        """The options and their defaults."""
        return OmegaConf.structured(self.config(_name=self.arch))


def _register(arch: str, model: Type[ContextModel], config: Type[FairseqDataclass]) -> None:
    """What ``register_model(arch, dataclass=config)`` does, with a :class:`PresetNode`."""
    register_model(arch, dataclass=FairseqDataclass)(model)
    setattr(model, "__dataclass", config)
    MODEL_DATACLASS_REGISTRY[arch] = config
    entries = ConfigStore.instance().repo["model"]
    entries[f"{arch}.yaml"] = PresetNode(arch, config, entries[f"{arch}.yaml"])

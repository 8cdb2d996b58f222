"""Named architectures: the options of a model with other defaults."""

from dataclasses import field, fields, make_dataclass
from typing import Any, Dict, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

Defaults = Dict[str, Any]


def register_presets(
    model: type, config: Type[FairseqDataclass], mechanisms: Dict[str, Defaults], sizes: Dict[str, Defaults]
) -> None:
    """Register an architecture for every mechanism in every size.

    Each is a registered model with a dataclass of its own, so that ``model: {_name: rcg_transformer_big}`` in a YAML
    file means the same as ``--arch rcg_transformer_big``.

    Args:
        model: the class of all of them
        config: the dataclass of its options
        mechanisms: by the architecture's name, what differs from the options' own defaults
        sizes: the same by the end of the name
    """
    for mechanism, options in mechanisms.items():
        for suffix, dimensions in sizes.items():
            arch = f"{mechanism}{suffix}"
            architecture = type(arch, (model,), {"__doc__": model.__doc__})
            register_model(arch, dataclass=preset(arch, config, {**options, **dimensions}))(architecture)


def preset(name: str, config: Type[FairseqDataclass], defaults: Defaults) -> Type[FairseqDataclass]:
    """A dataclass of the same options with other defaults."""
    changed = [
        (option.name, option.type, field(default=defaults[option.name], metadata=option.metadata))
        for option in fields(config)
        if option.name in defaults
    ]
    return make_dataclass(name, changed, bases=(config,))

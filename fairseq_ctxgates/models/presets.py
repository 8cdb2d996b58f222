"""Named architectures: the options of a model with other defaults."""

from dataclasses import field, fields, make_dataclass
from typing import Any, Dict, Sequence, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

from fairseq_ctxgates.errors import UserError

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


def check_task(task: Any, required_streams: Sequence[str]) -> None:
    """Raise UserError unless the task can load the side streams that a model requires."""
    if required_streams and not hasattr(task.cfg, "load_gate_labels"):
        raise UserError(
            f"this architecture reads side streams ({', '.join(required_streams)}): give --task context_translation, "
            f"which loads them"
        )


def preset(name: str, config: Type[FairseqDataclass], defaults: Defaults) -> Type[FairseqDataclass]:
    """A dataclass of the same options with other defaults."""
    changed = [
        (option.name, option.type, field(default=defaults[option.name], metadata=option.metadata))
        for option in fields(config)
        if option.name in defaults
    ]
    return make_dataclass(name, changed, bases=(config,))

"""The options of the models and other values for them, both from the dataclasses. Shared by the tests that every option
does something or is refused."""

from __future__ import annotations

import enum
from typing import Any, List

from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_ctxgates.models  # noqa: F401  registers the architectures
from fairseq_ctxgates.mechanism import RNNSEARCH, TRANSFORMER
from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.models.rnnsearch import RNNSearchModel

# The backbone of each tiny architecture of this package.
ARCHITECTURES = {
    name: RNNSEARCH if issubclass(model, RNNSearchModel) else TRANSFORMER
    for name, model in sorted(ARCH_MODEL_REGISTRY.items())
    if issubclass(model, ContextModel) and name.endswith("_tiny")
}


def other_values(option: Any) -> List[Any]:
    """Values of an option that differ from its default."""
    kind = getattr(option.type, "__args__", (option.type,))[0]  # of Optional[...]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [choice.value for choice in kind if choice.value != option.default]
    if kind is bool:
        return [option.default is not True]  # also where the default is that of another option
    if kind is str or str(option.default).startswith("${"):  # fairseq's reference to another option
        return ["1"]  # also a list of layers
    if getattr(kind, "__origin__", None) is list:
        return [(8,)]
    if kind is int:
        return [1 + (64 if option.default is None else option.default)]
    return [(option.default or 1) / 2]

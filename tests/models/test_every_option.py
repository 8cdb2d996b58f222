"""Every option does something or is refused.

The options come from the dataclasses, so that a new one is tested without a line here: given to an architecture with
another value than its default, the model's output or its loss differs from that without the option, or the option is
refused before training.
"""

from __future__ import annotations

import enum
from dataclasses import fields
from typing import Any, Iterator, List, Tuple

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import RNNSEARCH, TRANSFORMER
from fairseq_ctxgates.mechanisms import all_mechanisms
from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.models.rnnsearch import RNNSearchModel
from tests.helpers.models import EOS, PAD, make_batch, make_task

BATCH = make_batch(
    sources=[[4, 3, 6, 7, 8, 3, 10], [9, 10], [11, 3, 13]],
    targets=[[14, 3, 16], [17, 3, 19, 4, 5], [6]],
)
INPUTS = {
    "preceding_tokens": torch.tensor([[4, 5, EOS], [EOS, EOS, EOS], [6, 7, EOS]]),
    "relation_mask": torch.eye(8, dtype=torch.bool) | BATCH["net_input"]["src_tokens"].eq(PAD).unsqueeze(2),
}
ARCHITECTURES = {
    name: RNNSEARCH if issubclass(model, RNNSearchModel) else TRANSFORMER
    for name, model in sorted(ARCH_MODEL_REGISTRY.items())
    if issubclass(model, ContextModel) and name.endswith("_tiny")
}
# What an option needs beside it to do something, tried after the option alone.
COMPANIONS: dict[str, dict[str, Any]] = {
    "relation_lambda": {"relation_fusion": "linear"},
    "smoothing_width": {"smoothing": "ccwm"},
}


# Values that change nothing and are not refused, with the reason.
SAME_AS_DEFAULT = {
    ("car_transformer_tiny", "smoothing_combine", "replace"): "what the default is for unknown words",
    ("car_transformer_align_tiny", "smoothing_combine", "replace"): "what the default is for unknown words",
    ("car_rnnsearch_tiny", "smoothing_combine", "replace"): "what the default is for unknown words",
    ("isg_rnnsearch_tiny", "inter_sentence_layers", "1"): "RNNSearch has one layer, so that it means all",
}


def other_values(option: Any) -> List[Any]:
    """Values of an option that differ from its default."""
    kind = getattr(option.type, "__args__", (option.type,))[0]  # of Optional[...]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [choice.value for choice in kind if choice.value != option.default]
    if kind is bool:
        return [not option.default]
    if kind is str:
        return ["1"]  # a list of layers
    return [option.default + 1 if kind is int else option.default / 2]


def cases() -> Iterator[Tuple[str, str, Any]]:
    """Each option of each mechanism on each architecture, with each value but the architecture's own."""
    for arch, backbone in ARCHITECTURES.items():
        for mechanism in all_mechanisms():
            for option in fields(mechanism.configs[backbone]) if backbone in mechanism.configs else ():
                if option.name == "_name":
                    continue
                own = getattr(MODEL_DATACLASS_REGISTRY[arch](), option.name)
                for value in other_values(option):
                    if value != own and (arch, option.name, value) not in SAME_AS_DEFAULT:
                        yield arch, option.name, value


def output(arch: str, **options: Any) -> torch.Tensor:
    """The logits of a model for a batch, in evaluation mode."""
    torch.manual_seed(1)
    model = make_task().build_model(OmegaConf.create({"_name": arch, **options})).eval()
    inputs = {name: INPUTS[name] for name in model.input_names if name in INPUTS}
    with torch.no_grad():
        logits: torch.Tensor = model(**BATCH["net_input"], **inputs)[0][BATCH["target"].ne(PAD)]
    return logits


@pytest.mark.parametrize(("arch", "option", "value"), list(cases()))
def test_it_does_something_or_is_refused(arch: str, option: str, value: Any) -> None:
    try:
        found = output(arch, **{option: value})
    except UserError as error:
        assert f"--{option.replace('_', '-')}" in str(error) or "ablation" in str(error)
        return
    expected = output(arch)
    assert found.shape != expected.shape or not torch.equal(found, expected)


@pytest.mark.parametrize(("arch", "option", "value"), list(SAME_AS_DEFAULT))
def test_exceptions_say_what_is_so(arch: str, option: str, value: Any) -> None:
    assert torch.equal(output(arch, **{option: value}), output(arch))


@pytest.mark.parametrize(("option", "companions"), COMPANIONS.items())
def test_what_is_refused_alone_works_with_what_it_needs(option: str, companions: dict[str, Any]) -> None:
    every = [field for mechanism in all_mechanisms() for field in fields(mechanism.configs[TRANSFORMER])]
    (field,) = (field for field in every if field.name == option)
    changed = output("context_transformer_tiny", **companions, **{option: other_values(field)[0]})
    assert not torch.equal(changed, output("context_transformer_tiny", **companions))

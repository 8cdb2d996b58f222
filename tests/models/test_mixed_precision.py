"""Every architecture takes a training step under autocast, as ``--amp`` runs it (bfloat16 on a CPU)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.modules.interpolation import interpolate
from tests.helpers.models import PAD, make_batch, make_side_inputs, make_task

BATCH = make_batch(
    sources=[[4, 5, 6, 7, 8], [9, 10], [11, 3, 13]],
    targets=[[14, 15, 16], [17, 18, 19, 4, 5], [6]],
)
INPUTS = make_side_inputs(BATCH["net_input"]["src_tokens"])
ARCHITECTURES = sorted(
    name for name, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, ContextModel) and name.endswith("_tiny")
)
# What the named architectures leave out.
OTHERS: list[tuple[str, dict[str, Any]]] = [
    *(("fra_transformer_tiny", {"relation_fusion": fusion}) for fusion in ("linear", "gate", "concat-gate")),
    ("fra_transformer_tiny", {"relation_mask_operation": "multiply", "separate_relation_attention": True}),
    ("isg_transformer_tiny", {"context_gate": "interpolate", "relation_fusion": "gate", "smoothing": "ccwm"}),
    *(("isg_rnnsearch_tiny", {"context_gate": gate, "smoothing": "ccwm"}) for gate in ("source", "target", "both")),
    *(("car_transformer_tiny", {"smoothing_words": "all", "smoothing_side": side}) for side in ("encoder", "both")),
]


@pytest.mark.parametrize(("arch", "options"), [*((name, {}) for name in ARCHITECTURES), *OTHERS])
def test_a_step_under_autocast(arch: str, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = make_task().build_model(OmegaConf.create({"_name": arch, "dropout": 0.0, **options}))
    inputs = {name: INPUTS[name] for name in model.input_names if name in INPUTS}

    def loss() -> torch.Tensor:
        logits = model(**BATCH["net_input"], **inputs)[0].float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), BATCH["target"].flatten(), ignore_index=PAD)

    expected = loss()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss()
    found.backward()
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())


def test_interpolation_of_mixed_types() -> None:
    start, end, weight = torch.tensor([1.0]), torch.tensor([3.0]).bfloat16(), torch.tensor([0.25]).half()
    mixed = interpolate(start, end, weight)
    assert mixed.dtype == torch.float32
    assert mixed.item() == 1.5

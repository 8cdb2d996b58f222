"""Every architecture takes a training step as ``--amp``, ``--bf16`` and ``--fp16`` run it: on a GPU if there is one,
and there in float32 as well; else on the CPU, as far as torch can."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf

from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.modules.interpolation import interpolate
from tests.helpers.models import PAD, make_batch, make_side_inputs, make_task


class Precision(NamedTuple):
    """``tolerance``: of the loss, relative to that in float32 on the CPU."""

    option: str
    parameters: torch.dtype
    autocast: torch.dtype | None
    tolerance: float


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = [
    Precision("amp", torch.float32, torch.bfloat16, 0.03),
    Precision("bf16", torch.bfloat16, None, 0.03),
    Precision("fp16", torch.float16, None, 0.01),
]
if DEVICE == "cuda":
    PRECISIONS += [
        Precision("amp float16", torch.float32, torch.float16, 0.01),
        Precision("float32", torch.float32, None, 1e-4),
    ]
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


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.option)
@pytest.mark.parametrize(("arch", "options"), [*((name, {}) for name in ARCHITECTURES), *OTHERS])
def test_a_step(arch: str, options: dict[str, Any], precision: Precision) -> None:
    torch.manual_seed(1)
    model = make_task().build_model(OmegaConf.create({"_name": arch, "dropout": 0.0, **options}))
    inputs = {name: INPUTS[name] for name in model.input_names if name in INPUTS}
    batch = {"net_input": {**BATCH["net_input"], **inputs}, "target": BATCH["target"]}

    expected = loss(model, batch)
    model.to(device=DEVICE, dtype=precision.parameters)
    if DEVICE == "cuda":
        batch = utils.move_to_cuda(batch)
    is_autocast = precision.autocast is not None
    try:
        with torch.autocast(DEVICE, dtype=precision.autocast) if is_autocast else nullcontext():
            found = loss(model, batch)
        found.backward()
    except RuntimeError as error:
        if DEVICE == "cpu" and "not implemented for" in str(error):
            pytest.skip(f"this torch has no {precision.option} on the CPU: {error}")
        raise
    torch.testing.assert_close(found.cpu(), expected, rtol=precision.tolerance, atol=0)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())


def loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    logits = model(**batch["net_input"])[0].float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["target"].flatten(), ignore_index=PAD)


def test_interpolation_of_mixed_types() -> None:
    start, end, weight = torch.tensor([1.0]), torch.tensor([3.0]).bfloat16(), torch.tensor([0.25]).half()
    mixed = interpolate(start, end, weight)
    assert mixed.dtype == torch.float32
    assert mixed.item() == 1.5

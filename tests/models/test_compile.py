"""``torch.compile`` of every architecture: the same loss and gradient, and no graph break within a decoder layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_ctxgates.context_gates.gate_labels import SOURCE, TARGET
from tests.helpers.models import make_batch, make_side_inputs, make_task
from tests.helpers.options import ARCHITECTURES

if not hasattr(torch, "compile"):
    pytest.skip("torch before 2.0 has no compiler", allow_module_level=True)

from torch._dynamo.backends.debugging import ExplainWithBackend  # noqa: E402

BATCH = make_batch([[4, 3, 6, 7], [9, 10]], [[14, 3, 16], [6]], [[SOURCE, TARGET, SOURCE], [TARGET]])
INPUTS = make_side_inputs(BATCH["net_input"]["src_tokens"])
# Where the host must know a value: if there is padding, which words are unknown, and how many words there are.
MAY_BREAK = ("models/context_transformer.py", "models/rnnsearch.py", "smoothing/context_aware_smoothing.py")
BOTH = {"inter_sentence_gate": True, "smoothing": "fcwm", "smoothing_side": "both"}
# Every architecture by itself, of those for alignment one, which has their parts; and all parts together.
MODELS: list[tuple[str, dict[str, Any]]] = [
    *((arch, {}) for arch in ARCHITECTURES if "align" not in arch),
    ("rcg_transformer_align_tiny", {}),
    ("rcg_transformer_tiny", {**BOTH, "relation_fusion": "transform"}),
    ("ctxgate_rnnsearch_tiny", BOTH),
]


def step(model: Any, criterion: Any, batch: dict[str, Any]) -> tuple[float, torch.Tensor]:
    """The loss of a batch in training, and the gradient."""
    model.zero_grad()
    loss = criterion(model, batch)[0]
    loss.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return loss.item(), torch.cat(gradients)


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "options"), MODELS)
def test_compiled_models(arch: str, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    is_gated = arch.startswith(("rcg", "ctxgate"))
    task = make_task(load_gate_labels=is_gated)
    model = task.build_model(OmegaConf.create({"_name": arch, "dropout": 0.0, **options})).train()
    inputs = {**BATCH["net_input"], **{name: INPUTS[name] for name in model.input_names if name in INPUTS}}
    name = "gate_regularized_cross_entropy" if is_gated else "label_smoothed_cross_entropy"
    criterion = task.build_criterion(
        OmegaConf.create({"_name": name, "label_smoothing": 0.1, "sentence_avg": False})
    ).train()
    batch = {**BATCH, "net_input": inputs}
    expected_loss, expected = step(model, criterion, batch)
    torch._dynamo.reset()
    backend = ExplainWithBackend("aot_eager")
    model.compile(backend=backend)
    loss, gradient = step(model, criterion, batch)
    explained = backend.output()
    assert explained.graph_count > 0 and explained.op_count > 0
    for reason in explained.break_reasons:
        frame = reason.user_stack[-1]
        assert frame.filename.endswith(MAY_BREAK), f"{frame.filename}, line {frame.lineno}: {reason.reason}"
    assert loss == pytest.approx(expected_loss)
    torch.testing.assert_close(gradient, expected)

"""``torch.compile`` of models with every part: the same output, and no graph break within a decoder layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from tests.helpers.models import make_batch, make_side_inputs, make_task

if not hasattr(torch, "compile"):
    pytest.skip("torch before 2.0 has no compiler", allow_module_level=True)

BATCH = make_batch([[4, 3, 6, 7], [9, 10]], [[14, 3, 16], [6]])
INPUTS = make_side_inputs(BATCH["net_input"]["src_tokens"])
# Where the host must know a value: if there is padding, which words are unknown, and how many words there are.
MAY_BREAK = ("models/context_transformer.py", "models/rnnsearch.py", "smoothing/context_aware_smoothing.py")
BOTH = {"inter_sentence_gate": True, "smoothing": "fcwm", "smoothing_side": "both"}
# Together they have the parts of all architectures.
MODELS = {
    "context_transformer_tiny": {},
    "rcg_transformer_tiny": {**BOTH, "relation_fusion": "transform"},
    "ctxgate_rnnsearch_tiny": BOTH,
}


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "options"), MODELS.items())
def test_compiled_models(arch: str, options: dict[str, Any]) -> None:
    model = make_task().build_model(OmegaConf.create({"_name": arch, "dropout": 0.0, **options}))
    batch = {**BATCH["net_input"], **{name: INPUTS[name] for name in model.input_names if name in INPUTS}}
    torch._dynamo.reset()
    explained: Any = torch._dynamo.explain(model)(**batch)
    for reason in explained.break_reasons:
        frame = reason.user_stack[-1]
        assert frame.filename.endswith(MAY_BREAK), f"{frame.filename}, line {frame.lineno}: {reason.reason}"
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(**batch)[0], model(**batch)[0])

"""Every tensor that a model or the criterion makes is made on the device of its input.

The default device is set to ``meta``, whose tensors have no values and cannot be combined with others: a tensor that is
made without a device, which would be on the CPU beside a model on a GPU, fails or loses its values here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.inter_sentence.preceding_sentences import group_sentences
from fairseq_ctxgates.modules.dropout import Dropout
from fairseq_ctxgates.modules.gated_recurrent_unit import BidirectionalGRU
from fairseq_ctxgates.modules.interpolation import interpolate
from tests.helpers.models import PAD, make_batch, make_side_inputs, make_task
from tests.helpers.options import ARCHITECTURES

if not hasattr(torch, "set_default_device"):
    pytest.skip("the default device of torch before 2.0 is fixed", allow_module_level=True)

SOURCES, TARGETS = [[4, 3, 6, 7, 8], [9, 10], [11, 3, 13]], [[14, 3, 16], [17, 18, 19, 4, 5], [6]]
LABELS = [[SOURCE, TARGET, IGNORE], [TARGET, SOURCE, SOURCE, TARGET, TARGET], [SOURCE]]
BATCH = make_batch(SOURCES, TARGETS, LABELS)
INPUTS = make_side_inputs(BATCH["net_input"]["src_tokens"])
# Two preceding sentences of the first source.
DISTANCES = torch.tensor([[2, 1, 1], [1, 1, 1], [1, 1, 1]])
TWO_SENTENCES = {"preceding_distances": DISTANCES, "preceding_groups": group_sentences(DISTANCES)}
OPTIONS: dict[str, dict[str, Any]] = {
    "everything": {"inter_sentence_gate": True, "smoothing": "ccwm", "smoothing_side": "both"},
    "all_words": {"smoothing": "fcwm", "smoothing_words": "all"},
    "two sentences": {"inter_sentence_gate": True, "inter_sentence_context": 2},
    "random": {"inter_sentence_gate": True, "inter_sentence_ablation": "random"},
}
CASES: list[tuple[str, dict[str, Any]]] = [(arch, {}) for arch in ARCHITECTURES] + [
    (arch, options)
    for arch in ("rcg_transformer_tiny", "ctxgate_rnnsearch_tiny")
    for options in (*OPTIONS.values(), {"inter_sentence_gate": True, "inter_sentence_ablation": "null"})
]


@pytest.mark.parametrize(("arch", "options"), CASES)
def test_no_tensor_is_made_elsewhere(arch: str, options: dict[str, Any]) -> None:
    is_trained = options.get("inter_sentence_ablation") is not None
    model = make_task().build_model(OmegaConf.create({"_name": arch, "dropout": 0.0, **options}), is_trained)
    expected = run(model, is_trained)
    torch.set_default_device("meta")
    try:
        found = run(model, is_trained)
    finally:
        torch.set_default_device(None)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


def test_what_a_cpu_does_its_own_way_is_not_for_other_devices() -> None:
    """Accelerators without CUDA, for which a device of no values stands in."""
    x = torch.empty(3, 4, device="meta")
    assert Dropout(0.1).train()(x).device == x.device
    assert interpolate(x.half(), x.half(), x.half()).dtype == torch.float16
    with torch.device("meta"):
        gru = BidirectionalGRU(4, 2)
    assert gru.states(x, torch.tensor([2, 1])).device == x.device


def run(model: Any, is_trained: bool) -> list[torch.Tensor]:
    """The logits of decoding all at once and step by step, and the gradient of the sum of the logits."""
    given = {**INPUTS, **TWO_SENTENCES} if model.context_size > 1 else INPUTS
    inputs = {name: given[name] for name in model.input_names if name in given}
    batch = {**BATCH["net_input"], **inputs}
    words = batch.pop("prev_output_tokens")
    results = []
    with torch.no_grad():
        model.eval()
        encoder_out = model.encoder(**batch)
        state: dict[str, Any] = {}
        steps = [model.decoder(words[:, : end + 1], encoder_out, state)[0] for end in range(words.size(1))]
        order = torch.tensor([0, 0, 1, 1, 2, 2], device="cpu")
        reordered = model.encoder.reorder_encoder_out(encoder_out, order)
        results += [torch.cat(steps, dim=1), model.decoder(words[order], reordered)[0]]
    if not is_trained:
        model.train().zero_grad()
        model(**batch, prev_output_tokens=words)[0][words.ne(PAD)].sum().backward()
        results += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return results


@pytest.mark.parametrize("options", [{}, {"gate_reduction": "mean"}, {"regularized_layers": "1"}])
@pytest.mark.parametrize("arch", ["rcg_transformer_tiny", "ctxgate_rnnsearch_tiny"])
def test_the_criterion_makes_no_tensor_elsewhere(arch: str, options: dict[str, Any]) -> None:
    task = make_task(load_gate_labels=True)
    model = task.build_model(OmegaConf.create({"_name": arch, "dropout": 0.0}))
    criterion = task.build_criterion(
        OmegaConf.create({"_name": "gate_regularized_cross_entropy", "sentence_avg": False, **options})
    )
    expected = criterion(model.train(), BATCH)
    torch.set_default_device("meta")
    try:
        found = criterion(model, BATCH)
    finally:
        torch.set_default_device(None)
    assert float(found[0]) == pytest.approx(float(expected[0]))
    assert {key: float(value) for key, value in found[2].items()} == pytest.approx(
        {key: float(value) for key, value in expected[2].items()}
    )

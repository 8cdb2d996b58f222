"""Quantization noise reaches every matrix that it reaches in fairseq's Transformer, and the mechanisms' own."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.modules.quantization.scalar.modules import IntLinear
from fairseq.options import get_training_parser, parse_args_and_arch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.models.rnnsearch import RNNSearchModel
from fairseq_ctxgates.parts import Part
from tests.helpers.models import TINY, make_batch, make_side_inputs, make_task

pytestmark = pytest.mark.slow

BATCH = make_batch(
    sources=[[4, 5, 6, 7, 8], [9, 10], [11, 3, 13]],
    targets=[[14, 15, 16], [17, 18, 19, 4, 5], [6]],
)["net_input"]
INPUTS = make_side_inputs(BATCH["src_tokens"])
# fairseq has no scalar noise for learned positions.
SIZE = {**TINY, "encoder_learned_pos": False, "decoder_learned_pos": False}
PQ: dict[str, Any] = {"quant_noise_pq": 0.25, "quant_noise_pq_block_size": 4}
SCALAR: dict[str, Any] = {"quant_noise_scalar": 0.5}
TRANSFORMERS = sorted(
    name
    for name, model in ARCH_MODEL_REGISTRY.items()
    if issubclass(model, ContextModel) and not issubclass(model, RNNSearchModel) and name.endswith("_tiny")
)
MULTIPLY = {"relation_mask_operation": "multiply", "separate_relation_attention": True}
# What the named architectures leave out.
OTHERS: list[tuple[str, dict[str, Any]]] = [
    *(("fra_transformer", {"relation_fusion": fusion}) for fusion in ("linear", "gate", "concat-gate")),
    ("fra_transformer", MULTIPLY),
    ("isg_transformer", {"context_gate": "interpolate", "relation_fusion": "gate", "smoothing": "ccwm"}),
]
CASES: list[tuple[str, dict[str, Any]]] = [*((name, {}) for name in TRANSFORMERS), *OTHERS]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's scalar noise moves its scales to a GPU and back."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)


def build(arch: str, **options: Any) -> Any:
    """A model in training, ``transformer`` being fairseq's own. No parameter is zero, where noise could not be seen."""
    torch.manual_seed(1)
    options = {**SIZE, **options}
    config = Namespace(arch=arch, **options) if arch == "transformer" else OmegaConf.create({"_name": arch, **options})
    model = make_task().build_model(config).train()
    for parameter in model.parameters():
        parameter.data.uniform_(0.1, 0.3)
    return model


def logits(model: Any) -> Tensor:
    torch.manual_seed(2)
    inputs = {name: INPUTS[name] for name in getattr(model, "input_names", ()) if name in INPUTS}
    found: Tensor = model(**BATCH, **inputs)[0]
    return found


def noised(model: Any) -> set[str]:
    """The matrices that a forward pass in training changes, as the noise does that drops blocks."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    logits(model)
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def not_run(model: Any) -> set[str]:
    """The linear layers whose scalar noise, which a class of their own draws, is not drawn in a forward pass."""
    logits(model)
    return {name for name, module in model.named_modules() if isinstance(module, IntLinear) and module.counter == 0}


def linear_layers_of_parts(model: Any) -> set[str]:
    """The matrices of the linear layers that mechanisms add to decoder layers."""
    return {
        f"{path}.{name}.weight"
        for path, part in model.named_modules()
        if isinstance(part, Part)
        for name, module in part.named_modules()
        if isinstance(module, nn.Linear)
    }


@pytest.mark.parametrize(("arch", "options"), CASES)
def test_every_matrix_is_noised(arch: str, options: dict[str, Any]) -> None:
    """Those of fairseq's Transformer, and those of the linear layers that mechanisms add. Self-attention has none in
    fairseq, because torch's attention, which it takes there, does not run the projections; attention of our own
    does."""
    expected = noised(build("transformer", **PQ))
    assert len(expected) == 1 + 2 + 1 + 3 * (4 + 2)
    model = build(arch, **options, **PQ)
    expected |= linear_layers_of_parts(model)
    if options == MULTIPLY:
        attention = "encoder.layers.0.self_attn"
        expected |= {f"{attention}.{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    assert noised(model) == expected


@pytest.mark.parametrize("arch", ["context_transformer", "rcg_transformer", "isg_transformer", "fra_transformer"])
def test_evaluation_has_no_noise(arch: str) -> None:
    assert not noised(build(arch, **PQ).eval())


@pytest.mark.parametrize("noise", [PQ, SCALAR], ids=["pq", "scalar"])
def test_the_plain_model_has_fairseqs_noise(noise: dict[str, Any]) -> None:
    """The same random numbers for the same matrices: the same logits."""
    model, transformer = build("context_transformer", **noise), build("transformer", **noise)
    # fairseq 0.12.2's encoder layers hold more names, for a fast path that training does not take.
    transformer.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(logits(model), logits(transformer))


@pytest.mark.parametrize(("arch", "options"), OTHERS[2:])
def test_scalar_noise_is_drawn_for_every_linear_layer(arch: str, options: dict[str, Any]) -> None:
    """But for fairseq's self-attention, as in fairseq's Transformer."""
    left_out = not_run(build("transformer", **SCALAR))
    assert left_out and all(".self_attn." in name for name in left_out)
    if options == MULTIPLY:
        left_out = {name for name in left_out if name.startswith("decoder.")}
    assert not_run(build(arch, **options, **SCALAR)) == left_out


@pytest.mark.parametrize(("noise", "expected"), [({}, 2 + 3 + 3 + 3), (PQ, 1 + 3), (SCALAR, 2 + 3)])
def test_without_noise_attention_is_torchs(
    noise: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training nothing is as fast, where torch's MKL is: the encoder's layer, for the sentence and for the preceding
    one, which with the first noise are one batch; and in each decoder layer self-attention, attention over the sentence
    and over the preceding one."""
    monkeypatch.setattr("fairseq_ctxgates.models.context_transformer.onednn_is_faster", lambda: False)
    model, calls = build("isg_transformer", **noise), []
    attention = F.multi_head_attention_forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return attention(*args, **kwargs)

    monkeypatch.setattr(F, "multi_head_attention_forward", counted)
    model(**BATCH, preceding_tokens=INPUTS["preceding_tokens"], return_attention=False)
    assert len(calls) == expected


def test_rnnsearch_refuses_it(capsys: pytest.CaptureFixture[str]) -> None:
    """As fairseq's recurrent models do."""
    for arch in ("rnnsearch", "lstm"):
        with pytest.raises(SystemExit):
            parse_args_and_arch(get_training_parser(), ["data", "--arch", arch, "--quant-noise-pq", "0.1"])
        assert "unrecognized arguments: --quant-noise-pq 0.1" in capsys.readouterr().err

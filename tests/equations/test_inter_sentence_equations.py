"""The inter-sentence gate (ISG) on the Transformer: equations 9 and 10 of Kuang and Xiong 2018; docs/decisions.md."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.gate import InterSentenceGate
from fairseq_ctxgates.inter_sentence.random_context import random_context, sentence_keys
from fairseq_ctxgates.models.warm_start import warm_start
from tests.helpers.models import (
    EOS,
    NORM_ORDERS,
    PAD,
    RETURNED_GATES,
    SOURCES,
    TARGETS,
    build_model,
    check_gates,
    check_gradients,
    check_words,
    make_batch,
    make_model,
    norm_order_options,
    save_parameters,
    vector,
)
from tests.helpers.reference_transformer import ReferenceTransformer, encode

pytestmark = pytest.mark.usefixtures("float64")

BATCH = make_batch(SOURCES, TARGETS)
PRECEDING = torch.tensor([[PAD, PAD, 7, EOS], [EOS, EOS, EOS, EOS], [4, 5, 6, EOS]])
PRECEDING[1, 0] = PAD  # (eos, eos, eos), padded on the left
INPUT = {**BATCH["net_input"], "preceding_tokens": PRECEDING}
WORDS = INPUT["prev_output_tokens"].ne(PAD)


def check(found: Tensor, expected: Any) -> None:
    check_words(found, expected, WORDS)


# --- against the reference implementation -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        *(("isg_transformer", norm_order_options(order)) for order in NORM_ORDERS),
        ("isg_transformer", {"inter_sentence_layers": "1,3"}),
        ("isg_transformer", {"context_gate": "interpolate"}),
        ("rcg_transformer", {"inter_sentence_gate": True, **norm_order_options("pre")}),
    ],
)
@torch.no_grad()
def test_decoder_computes_what_the_paper_says(arch: str, options: dict[str, Any]) -> None:
    model = make_model(arch, **options)
    reference = ReferenceTransformer(model, options.get("decoder_norm_order", "post"))
    expected, context_gates, inter_sentence_gates = reference.decode(
        INPUT["prev_output_tokens"].numpy(), encode(model, INPUT["src_tokens"]), encode(model, PRECEDING)
    )

    logits, extra = model(**INPUT, returns=(*RETURNED_GATES, "preceding_attention"))

    check(logits, expected)
    assert extra["preceding_attention"].keys() == extra["inter_sentence_gates"].keys()
    for number, attention in extra["preceding_attention"].items():
        assert attention.shape == (3, *WORDS.shape, PRECEDING.size(1))
        for head, weights in zip(
            attention, reference.attention_weights[f"layers.{number - 1}.source_parts.inter_sentence.attention"]
        ):
            check(head, weights)
    check_gates(extra["context_gates"], context_gates, WORDS)
    check_gates(extra["inter_sentence_gates"], inter_sentence_gates, WORDS)
    layers = 2 if "inter_sentence_layers" in options else 3
    assert len(extra["inter_sentence_gates"]) == layers


@pytest.mark.parametrize("closed", [False, True])
def test_gate_by_hand(closed: bool) -> None:
    """d = 2. The gate's logits are log 3 · (t1 + c_b2 + c_a1) and 0, so z2 = 1/2 and z1 = 3/4 where that sum is 1; C_1
    doubles, C_2 is the identity that it starts as."""
    gate = InterSentenceGate(2, 2, closed).double()
    first = torch.tensor([[math.log(3), 0], [0, 0]])
    gate.from_state.weight.data = first.double()
    gate.from_sentence.weight.data = first.flip(1).double()
    gate.from_preceding.weight.data = first.double()
    gate.preceding_proj.weight.data = 2 * torch.eye(2).double()
    c_b, c_a = vector(4, 3), vector(-1, 5)
    s, z = gate(vector(-1, 7), c_b, c_a)  # t1 + c_b2 + c_a1 = -1 + 3 - 1 = 1
    if closed:
        torch.testing.assert_close(z, vector(0, 0))
        torch.testing.assert_close(s, c_b)
    else:
        torch.testing.assert_close(z, vector(0.75, 0.5))
        # 3/4 · 2 · (-1) + 1/4 · 4 = -1/2;  1/2 · 2 · 5 + 1/2 · 3 = 13/2
        torch.testing.assert_close(s, vector(-0.5, 6.5))


def test_initial_bias() -> None:
    """z = σ(b) where all that the gate reads is zero: 1/4 with b = -log 3."""
    model = build_model("isg_transformer", inter_sentence_gate_bias=-math.log(3))
    for layer in model.decoder.layers:
        zero = torch.zeros(1, 12)
        z = layer.source_parts["inter_sentence"].gate(zero, zero, zero)[1]
        torch.testing.assert_close(z, torch.full_like(z, 0.25))


def test_parameter_count() -> None:
    """A layer: attention, 4 (d² + d), and the gate, 5 d² + d."""
    plain, gated = (build_model(arch) for arch in ("context_transformer", "isg_transformer"))
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (plain, gated)]
    assert counts[1] - counts[0] == 3 * (4 * (12**2 + 12) + 5 * 12**2 + 12)


def test_gradients_are_those_of_finite_differences() -> None:
    """Every parameter of the mechanism, by finite differences."""
    model = make_model("isg_transformer", decoder_layers=1)
    layer = model.decoder.layers[0]
    parameters = {name: value for name, value in model.named_parameters() if name in model.mechanism_parameters()}
    assert len(parameters) == 8 + 6
    weights = torch.randn(*WORDS.shape, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def loss() -> Tensor:
        return (model(**INPUT)[0] * weights)[WORDS].sum()

    check_gradients(loss, parameters, rel=1e-5)
    assert layer.source_parts["inter_sentence"].gate.from_state.bias.grad.abs().min() > 0


# --- the preceding sentence -------------------------------------------------------------------------------------------


@torch.no_grad()
def test_padding_of_the_preceding_sentence_changes_nothing() -> None:
    model = make_model("isg_transformer")
    expected = model(**INPUT)[0]
    left = torch.cat([torch.full((3, 2), PAD), PRECEDING], dim=1)
    right = torch.tensor([[7, EOS, PAD, PAD], [EOS, EOS, EOS, PAD], [4, 5, 6, EOS]])
    for padded in (left, right):
        torch.testing.assert_close(model(**{**INPUT, "preceding_tokens": padded})[0][WORDS], expected[WORDS])


@torch.no_grad()
def test_the_preceding_sentence_matters() -> None:
    model = make_model("isg_transformer")
    changed = PRECEDING.clone()
    changed[0, 2] = 8
    difference = (model(**INPUT)[0] - model(**{**INPUT, "preceding_tokens": changed})[0]).abs().amax(dim=-1)
    assert difference[0][WORDS[0]].min() > 1e-4
    assert difference[1:][WORDS[1:]].max() < 1e-12


def test_a_model_without_its_input_says_so() -> None:
    with pytest.raises(ValueError, match="preceding_tokens"):
        make_model("isg_transformer")(**BATCH["net_input"])


def test_layers_that_do_not_exist() -> None:
    with pytest.raises(UserError, match="--inter-sentence-layers 2,4.*1 to 3"):
        build_model("isg_transformer", inter_sentence_layers="2,4")


def test_attention_over_the_preceding_sentence_survives_activation_checkpointing() -> None:
    """The attention keeps its gradient, and is returned only when it is asked for."""
    found = []
    for checkpointing in (False, True):
        model = make_model("isg_transformer", checkpoint_activations=checkpointing).train()
        assert "preceding_attention" not in model(**INPUT)[1]
        attention = model(**INPUT, returns=("preceding_attention",))[1]["preceding_attention"]
        sum((weights[:, WORDS] ** 2).sum() for weights in attention.values()).backward()
        layers = [getattr(layer, "_fsdp_wrapped_module", layer) for layer in model.decoder.layers]
        found.append(
            (attention, [layer.source_parts["inter_sentence"].attention.q_proj.weight.grad for layer in layers])
        )
    (expected, gradients), (attention, other_gradients) = found
    assert attention.keys() == expected.keys() == {1, 2, 3}
    for number, weights in attention.items():
        torch.testing.assert_close(weights[:, WORDS], expected[number][:, WORDS])
    for gradient, other in zip(gradients, other_gradients):
        assert gradient.abs().max() > 1e-4
        torch.testing.assert_close(other, gradient)


# --- ablations --------------------------------------------------------------------------------------------------------


def ablated(ablation: str, **options: Any) -> Any:
    """The model of every test here, under an ablation."""
    return make_model("isg_transformer", inter_sentence_ablation=ablation, **options)


@torch.no_grad()
def test_null_is_every_sentence_a_documents_first() -> None:
    null = torch.full((3, 3), EOS)
    expected = ablated("none")(**{**INPUT, "preceding_tokens": null})[0]
    torch.testing.assert_close(ablated("null")(**INPUT)[0], expected)


@torch.no_grad()
def test_closed_has_gates_of_zero() -> None:
    logits, extra = ablated("closed")(**INPUT, returns=RETURNED_GATES)
    assert all((gate == 0).all() for gate in extra["inter_sentence_gates"].values())
    changed = {**INPUT, "preceding_tokens": PRECEDING.flip(0)}
    torch.testing.assert_close(ablated("closed")(**changed)[0], logits)


@torch.no_grad()
def test_random_depends_on_the_sentence_alone() -> None:
    """Neither other sentences, nor padding, nor the preceding sentence change the random contexts."""
    model = ablated("random")
    logits, extra = model(**INPUT, returns=("preceding_attention",))
    assert extra["preceding_attention"] == {}  # there is none
    assert model.layers_that_return("preceding_attention") == ()
    assert (logits - ablated("none")(**INPUT)[0])[WORDS].abs().amax(dim=-1).min() > 1e-4
    order = torch.tensor([2, 0])
    source = torch.cat([torch.full((2, 1), PAD), INPUT["src_tokens"][order]], dim=1)
    others = model(source, None, INPUT["prev_output_tokens"][order], preceding_tokens=PRECEDING[order].flip(0))[0]
    torch.testing.assert_close(others[WORDS[order]], logits[order][WORDS[order]])


def test_random_context_is_uniform_and_never_the_same_twice() -> None:
    keys = sentence_keys(torch.tensor([[PAD, 4, 5, EOS], [5, 4, 6, EOS], [PAD, 5, 4, EOS]]), PAD)
    assert len(set(keys.tolist())) == 3
    numbers = torch.stack([random_context(keys, layer, torch.arange(50), 64) for layer in (1, 2)])
    assert numbers.shape == (2, 50, 3, 64)
    assert -1 < numbers.min() < -0.999 and 0.999 < numbers.max() < 1
    assert numbers.mean().abs() < 0.02 and (numbers.var() - 1 / 3).abs() < 0.01  # uniform: variance 2² / 12
    assert numbers.unique().numel() > 0.99 * numbers.numel()
    for dim in range(3):
        neighbours = (numbers.narrow(dim, 1, 1) * numbers.narrow(dim, 0, 1)).mean()
        assert neighbours.abs() < 0.05
    torch.testing.assert_close(random_context(keys, 2, torch.tensor([7]), 64)[0], numbers[1, 7])


# --- as a Transformer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["post", "pre"])
@torch.no_grad()
def test_warm_started_and_closed_it_is_the_transformer(order: str, tmp_path: Path) -> None:
    """C_2 is the identity in a new model."""
    options = norm_order_options(order)
    plain = make_model("context_transformer", **options)
    model = build_model("isg_transformer", inter_sentence_ablation="closed", **options).double().eval()
    warm_start(model, save_parameters(plain, tmp_path / "plain.pt"), Namespace())
    torch.testing.assert_close(model(**INPUT)[0], plain(**BATCH["net_input"])[0])

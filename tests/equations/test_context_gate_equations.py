"""Regularized context gates (RCG): equations 2 to 4 of Li et al. 2020; docs/decisions.md."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fairseq_ctxgates.context_gates.context_gate import GATES, ContextGate
from fairseq_ctxgates.modules.norm_order import NormOrder, SublayerNorm
from tests.helpers.models import (
    NORM_ORDERS,
    PAD,
    RETURNED_GATES,
    SOURCES,
    TARGETS,
    build_model,
    check_gates,
    check_words,
    make_batch,
    make_model,
    norm_order_options,
    runs_stock_encoder,
)
from tests.helpers.reference_transformer import ReferenceTransformer, encode

pytestmark = pytest.mark.usefixtures("float64")

BATCH = make_batch(SOURCES, TARGETS)


# --- against the reference implementation -----------------------------------------------------------------------------


ACTIVATIONS: dict[str, Any] = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}


@pytest.mark.parametrize(
    ("order", "activation"), [("post", "relu"), ("pre", "relu"), ("inner", "relu"), ("inner", "tanh")]
)
@torch.no_grad()
def test_decoder_computes_what_the_paper_says(order: str, activation: str) -> None:
    model = make_model("rcg_transformer", activation_fn=activation, **norm_order_options(order))
    tokens, previous = BATCH["net_input"]["src_tokens"], BATCH["net_input"]["prev_output_tokens"]
    reference = ReferenceTransformer(model, order, ACTIVATIONS[activation])
    expected_logits, expected_gates, _ = reference.decode(previous.numpy(), encode(model, tokens))

    logits, extra = model(**BATCH["net_input"], returns=RETURNED_GATES)

    words = previous.ne(PAD)
    check_words(logits, expected_logits, words)
    assert sorted(extra["context_gates"]) == [1, 2, 3]
    check_gates(extra["context_gates"], expected_gates, words)


# --- the gate, by hand ------------------------------------------------------------------------------------------------


def gate_by_hand() -> ContextGate:
    """A gate with d = 2 and f = 2: its hidden units are relu(t1) and relu(s2 - 1), its logits log 3 times the one and
    minus log 3 times the other. So a hidden unit of 1 gives z = 3/4 (or 1/4), one of 0 gives 1/2."""
    model = make_model(
        "rcg_transformer",
        encoder_embed_dim=2,
        encoder_ffn_embed_dim=2,
        encoder_attention_heads=1,
        decoder_attention_heads=1,
        activation_dropout=0.5,  # off in evaluation
    )
    gate = model.decoder.layers[0].connection
    log3 = math.log(3)
    gate.fc1.weight.data = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1]]).double()  # columns t1 t2 s1 s2
    gate.fc1.bias.data = torch.tensor([0.0, -1]).double()
    gate.fc2.weight.data = torch.tensor([[log3, 0], [0, -log3]]).double()
    gate.fc2.bias.data = torch.zeros(2).double()
    return gate


UNNORMALIZED = SublayerNorm(NormOrder.PRE, nn.Identity())  # leaves s as it is


def vector(*components: float) -> Tensor:
    return torch.tensor([[components]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("t", "s", "gate_input", "z", "u"),
    [
        # hidden (1, 1), z = (3/4, 1/4); u1 = 1/4 · 1 + 3/4 · 5 = 4, u2 = 3/4 · 6 + 1/4 · 2 = 5
        ((1, 6), (5, 2), (1, 6), (0.75, 0.25), (4, 5)),
        # hidden (relu(-1), relu(0)) = (0, 0), z = (1/2, 1/2); u1 = (-1 + 3) / 2 = 1, u2 = (4 + 1) / 2 = 5/2
        ((-1, 4), (3, 1), (-1, 4), (0.5, 0.5), (1, 2.5)),
        # the gate reads (2, 0) for t but mixes t itself: hidden (2, 1), z1 = 9/10, z2 = 1/4; u1 = 1/10 + 45/10 = 4.6
        ((1, 6), (5, 2), (2, 0), (0.9, 0.25), (4.6, 5)),
    ],
)
def test_gate_by_hand(t: tuple, s: tuple, gate_input: tuple, z: tuple, u: tuple) -> None:
    mixed, returned = gate_by_hand()(vector(*t), vector(*s), vector(*gate_input), UNNORMALIZED)
    torch.testing.assert_close(returned[GATES], vector(*z))
    torch.testing.assert_close(mixed, vector(*u))


def test_gate_has_the_models_activation_dropout() -> None:
    gate = gate_by_hand().train()
    t, s = (torch.ones(200, 1, 1, dtype=torch.float64) * vector(*x) for x in ((1, 6), (5, 2)))
    z = gate(t, s, t, UNNORMALIZED)[1][GATES]
    # A hidden unit of 1 becomes 0 (z = 1/2) or, scaled by 1 / (1 - 0.5), 2 (z1 = 9/10, z2 = 1/10).
    for component, kept in ((0, 0.9), (1, 0.1)):
        values, counts = z[:, 0, component].detach().unique(return_counts=True)
        torch.testing.assert_close(values, torch.tensor(sorted([0.5, kept]), dtype=torch.float64))
        assert counts.min() >= 50


# --- size, and what is left of the Transformer ------------------------------------------------------------------------


def test_parameter_count() -> None:
    def count(arch: str, layers: int) -> int:
        model = build_model(
            arch,
            encoder_embed_dim=512,
            encoder_ffn_embed_dim=2048,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            decoder_layers=layers,
        )
        return sum(parameter.numel() for parameter in model.parameters())

    # A layer: 2·512 · 2048 + 2048 + 2048 · 512 + 512. The paper's table 1 has 92M where the Transformer has 74M.
    assert count("rcg_transformer", 1) - count("context_transformer", 1) == 3_148_288
    assert count("rcg_transformer", 6) - count("context_transformer", 6) == 18_889_728


def stock(model: Any, **options: Any) -> Any:
    """fairseq's own Transformer of the given options with the same parameters, but those of the gates."""
    own = {name: value for name, value in model.state_dict().items() if ".connection." not in name}
    transformer = make_model("transformer", **options)
    # fairseq 0.12.2's encoder layers hold more names, for a fast path that is not used here.
    result = transformer.load_state_dict(own, strict=False)
    assert not result.unexpected_keys and all(name.startswith("encoder.") for name in result.missing_keys)
    return transformer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decoder_normalize_before": True},
        {"decoder_normalize_before": True, "no_decoder_final_norm": True},
        {"decoder_learned_pos": False, "layernorm_embedding": True, "no_scale_embedding": True},
        {"no_token_positional_embeddings": True, "activation_fn": "gelu"},
        {"decoder_output_dim": 8},
        {"share_all_embeddings": True},
        {"decoder_embed_dim": 8, "decoder_attention_heads": 2, "decoder_ffn_embed_dim": 10},
    ],
)
def test_all_off_is_the_transformer(options: dict[str, Any]) -> None:
    model = make_model("context_transformer", **options)
    transformer = stock(model, **options)
    logits = []
    for either in (model, transformer):
        logits.append(either.train()(**BATCH["net_input"])[0])  # TINY has no dropout
        logits[-1].square().sum().backward()
    torch.testing.assert_close(*logits, rtol=0, atol=1e-10)
    gradients = {name: parameter.grad for name, parameter in transformer.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-9, atol=1e-9)


class Sum(nn.Module):
    """The residual connection, for use in place of the gate."""

    def forward(self, target: Tensor, source: Tensor, _: Tensor, norm: SublayerNorm) -> tuple[Tensor, dict]:
        return target + norm.normalize_output(source), {}


@runs_stock_encoder
@pytest.mark.parametrize(("order", "is_stock"), [("pre", True), ("post", False)])
@torch.no_grad()
def test_gate_replaced_by_the_sum(order: str, is_stock: bool) -> None:
    model = make_model("rcg_transformer", **norm_order_options(order))
    expected = stock(model, decoder_normalize_before=order == "pre")(**BATCH["net_input"])[0]
    for layer in model.decoder.layers:
        layer.connection = Sum()
    words = BATCH["target"].ne(PAD)
    difference = (model(**BATCH["net_input"])[0] - expected)[words].abs().max()
    if is_stock:
        assert difference < 1e-6
    else:
        # Stock normalizes the sum, the gated layer its source part.
        assert difference > 1e-2


@torch.no_grad()
def test_gate_at_one_half_is_half_the_sum() -> None:
    """u = (t + s) / 2 where every z is one half, which is what a gate whose second layer is zero gives."""
    model = make_model("rcg_transformer", decoder_layers=1, **norm_order_options("post"))
    gate = model.decoder.layers[0].connection
    gate.fc2.weight.zero_()
    gate.fc2.bias.zero_()
    logits, extra = model(**BATCH["net_input"], returns=RETURNED_GATES)
    torch.testing.assert_close(extra["context_gates"][1], torch.full_like(extra["context_gates"][1], 0.5))

    class Half(Sum):
        def forward(self, target: Tensor, source: Tensor, _: Tensor, norm: SublayerNorm) -> tuple[Tensor, dict]:
            return super().forward(target, source, _, norm)[0] / 2, {}

    model.decoder.layers[0].connection = Half()
    torch.testing.assert_close(logits, model(**BATCH["net_input"])[0])


# --- what leaves the model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_gates_are_returned_when_asked_for(training: bool) -> None:
    model = make_model("rcg_transformer").train(training)
    assert "context_gates" not in model(**BATCH["net_input"])[1]
    gates = model(**BATCH["net_input"], returns=RETURNED_GATES)[1]["context_gates"]
    assert sorted(gates) == [1, 2, 3]
    batch, length = BATCH["target"].shape
    for z in gates.values():
        assert z.shape == (length, batch, 12)
        assert z.min() > 0 and z.max() < 1
        assert z.requires_grad


def test_plain_model_has_no_gates() -> None:
    assert make_model("context_transformer")(**BATCH["net_input"], returns=RETURNED_GATES)[1]["context_gates"] == {}


@pytest.mark.parametrize("order", NORM_ORDERS)
def test_gate_option_makes_any_architecture_gated(order: str) -> None:
    options = norm_order_options(order)
    by_option = make_model("context_transformer", context_gate="interpolate", **options)
    by_name = make_model("rcg_transformer", **options)
    torch.testing.assert_close(by_option(**BATCH["net_input"])[0], by_name(**BATCH["net_input"])[0])

"""Factual relations (FRA) on the Transformer: equations 7 to 18 of Li, Zhu et al. 2022; docs/decisions.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.fusion import FUSIONS
from tests.helpers.models import (
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
    multiplies_float16,
    norm_order_options,
    save_parameters,
    vector,
)
from tests.helpers.reference_transformer import ReferenceTransformer, Sentence, encode

pytestmark = pytest.mark.usefixtures("float64")

BATCH = make_batch(SOURCES, TARGETS)
SOURCE = BATCH["net_input"]["src_tokens"]
WORDS = BATCH["net_input"]["prev_output_tokens"].ne(PAD)
SOURCE_WORDS = SOURCE.ne(PAD)
PRECEDING = torch.tensor([[PAD, 7, 2], [2, 2, 2], [4, 5, 2]])


def as_mask(rows: list[str]) -> Tensor:
    """A matrix of booleans, drawn: ``x`` where i may see j."""
    return torch.tensor([[character == "x" for character in row] for row in rows])


FULL = torch.ones(3, 6, 6, dtype=torch.bool)
# Two tuples that share a word; no tuples; one tuple of the first and the third word, behind two of padding.
MASK = torch.stack(
    [
        as_mask(["xxx...", "xxx...", "xxxxx.", "..xxx.", "..xxx.", ".....x"]),
        as_mask(["xxxxxx"] * 6),
        as_mask(["xxxxxx", "xxxxxx", "..x.x.", "...x..", "..x.x.", ".....x"]),
    ]
)
INPUT = {**BATCH["net_input"], "relation_mask": MASK}


def check(found: Tensor, expected: Any, words: Tensor = WORDS) -> None:
    check_words(found, expected, words)


# --- against the reference implementation -----------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["fill", "multiply"])
@pytest.mark.parametrize("order", ["post", "pre"])
@torch.no_grad()
def test_encoder_computes_what_the_paper_says(operation: str, order: str) -> None:
    """Both encodings, h and h', in every layer's order of normalization."""
    options: dict[str, Any] = {"encoder_layers": 2, "encoder_normalize_before": order == "pre"}
    model = make_model("fra_transformer", relation_mask_operation=operation, **options)
    reference = ReferenceTransformer(model, order, side="encoder")
    encoder_out = model.encoder(SOURCE, relation_mask=MASK, return_all_hiddens=True)
    h = reference.encode(SOURCE.numpy(), FULL.numpy())
    check(encoder_out["encoder_out"][0].transpose(0, 1), h, SOURCE_WORDS)
    expected = reference.encode(SOURCE.numpy(), MASK.numpy(), operation)
    check(encoder_out["relation_out"][0].transpose(0, 1), expected, SOURCE_WORDS)
    has_tuples = SOURCE_WORDS.numpy() & (np.arange(3) != 1)[:, None]
    assert np.abs(expected - h)[has_tuples].max(axis=-1).min() > 1e-3

    plain = super(type(model.encoder), model.encoder).forward(SOURCE, return_all_hiddens=True)  # fairseq's
    assert len(plain["encoder_states"]) == len(encoder_out["encoder_states"]) == 3
    for name in ("encoder_states", "encoder_padding_mask", "encoder_embedding", "src_lengths"):
        for ours, theirs in zip(encoder_out[name], plain[name]):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"relation_layers": "1,3"},
        {"relation_layers": "all", "separate_relation_attention": True, **norm_order_options("pre")},
        {"relation_mask_operation": "multiply", **norm_order_options("inner")},
        {"context_gate": "interpolate", "inter_sentence_gate": True},
    ],
    ids=lambda options: " ".join(options),
)
@torch.no_grad()
def test_decoder_computes_what_the_paper_says(fusion: str, options: dict[str, Any]) -> None:
    own: dict[str, Any] = {"relation_fusion": fusion, **({"relation_lambda": 0.3} if fusion == "linear" else {})}
    model = make_model("fra_transformer", **own, **options)
    layers = {"1,3": (1, 3), "all": (1, 2, 3)}.get(options.get("relation_layers", ""), (3,))
    reference = ReferenceTransformer(
        model, options.get("decoder_norm_order", "post"), fusion=(fusion, layers), relation_lambda=0.3
    )
    relations = ReferenceTransformer(model, side="encoder").encode(
        SOURCE.numpy(), MASK.numpy(), options.get("relation_mask_operation", "fill")
    )
    sentence = Sentence(*encode(model, SOURCE)[:2], relations)
    previous = INPUT["prev_output_tokens"].numpy()
    expected, context_gates, inter_sentence_gates = reference.decode(previous, sentence, encode(model, PRECEDING))

    logits, extra = model(**INPUT, preceding_tokens=PRECEDING, returns=RETURNED_GATES)

    check(logits, expected)
    check_gates(extra["context_gates"], context_gates, WORDS)
    check_gates(extra["inter_sentence_gates"], inter_sentence_gates, WORDS)


LOG3 = math.log(3)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # 4 + 1/4 · 8 = 6;  2 + 1/4 · (-4) = 1
        ("linear", (6, 1)),
        # g = σ(log 3 · (ŝ1 - ŝ2 - 1), b2 = 0) = (3/4, 1/2);  3/4 · 4 + 1/4 · 8 = 5;  (2 - 4) / 2 = -1
        ("gate", (5, -1)),
        # the same f; o = (ŝ1 + s̃2, 2 s̃1) + (1, -4) = (1, 12);  W_f [ŝ; s̃] = log 3 · (2, 0);
        # 3/4 · 1 + 1/4 · 2 log 3;  (12 + 0) / 2 = 6
        ("concat-gate", (0.75 + 0.5 * LOG3, 6)),
        # (ŝ1 + s̃2, 2 s̃1) + (1, -4)
        ("transform", (1, 12)),
    ],
)
def test_fusion_by_hand(kind: str, expected: tuple[float, float]) -> None:
    """d = 2, ŝ = (4, 2), s̃ = (8, -4), λ = 1/4."""
    fusion: Any = FUSIONS[kind](2, 0.25).double()
    if kind in ("gate", "concat-gate"):
        fusion.gate.weight.data = LOG3 * torch.tensor([[1, -1, 0, 0], [0, 0, 0, 0]]).double()
        fusion.gate.bias.data = LOG3 * vector(-1, 0)
    if kind in ("transform", "concat-gate"):
        fusion.transform.weight.data = torch.tensor([[1, 0, 0, 1], [0, 0, 2, 0]]).double()
        fusion.transform.bias.data = vector(1, -4)
    torch.testing.assert_close(fusion(vector(4, 2), vector(8, -4)), vector(*expected))


def test_attention_under_a_mask_by_hand() -> None:
    """d = 2, one head, q = √2 k, k = v = x. The first word's scores with itself and with the second are log 3 and
    2 log 3; outside of M the second is minus infinity (fill), or 0 (multiply)."""
    x = torch.tensor([[[math.sqrt(LOG3), 0]], [[2 * math.sqrt(LOG3), 0]]], dtype=torch.float64)
    hidden = torch.tensor([[[False, True], [False, False]]])
    found = {}
    for operation in ("fill", "multiply"):
        options: dict[str, Any] = {"encoder_embed_dim": 2, "encoder_attention_heads": 1, "decoder_attention_heads": 1}
        model = build_model("fra_transformer", relation_mask_operation=operation, **options).double().eval()
        attention = model.encoder.layers[0].self_attn
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
            projection.weight.data = torch.eye(2).double()
            projection.bias.data.zero_()
        attention.q_proj.weight.data *= math.sqrt(2)
        for name, mask in (("full", hidden & False), (operation, hidden)):
            found[name] = attention(x, x, x, attn_mask=mask, need_weights=False)[0][0, 0, 0].item() / math.sqrt(LOG3)
    # e^log 3 = 3 and e^(2 log 3) = 9: weights 1/4, 3/4; 1, 0; and 3/4, 1/4 for e^log 3 = 3 and e^0 = 1
    assert {name: round(value, 10) for name, value in found.items()} == {
        "full": 0.25 + 2 * 0.75,
        "fill": 1.0,
        "multiply": 0.75 + 2 * 0.25,
    }


# --- what must hold ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["fill", "multiply"])
@torch.no_grad()
def test_a_sentence_without_tuples_has_its_plain_encoding(operation: str) -> None:
    model = make_model("fra_transformer", relation_mask_operation=operation)
    encoder_out = model.encoder(SOURCE, relation_mask=MASK)
    sentence, relations = encoder_out["encoder_out"][0], encoder_out["relation_out"][0]
    words = SOURCE_WORDS.t()
    torch.testing.assert_close(relations[:, 1][words[:, 1]], sentence[:, 1][words[:, 1]], rtol=0, atol=1e-14)
    assert (relations - sentence)[:, 0].abs().amax(dim=-1).min() > 1e-3


@pytest.mark.parametrize("fusion", FUSIONS)
@torch.no_grad()
def test_compare_fusion_is_the_full_mask(fusion: str) -> None:
    """Compare Fusion sets h' = h and needs no mask."""
    full = make_model("fra_transformer", relation_fusion=fusion)
    compared = make_model("fra_transformer", relation_fusion=fusion, relation_ablation="compare")
    assert (full.required_streams, compared.required_streams) == (("relation",), ())
    assert dict(full.named_parameters()).keys() == dict(compared.named_parameters()).keys()
    expected = full(**BATCH["net_input"], relation_mask=FULL)[0]
    check(compared(**BATCH["net_input"])[0], expected)
    check(compared(**INPUT)[0], expected)
    assert (full(**INPUT)[0] - expected)[0].abs().max() > 1e-3
    with pytest.raises(KeyError, match="relation_out"):  # the full model never falls back to h
        full.decoder(INPUT["prev_output_tokens"], compared.encoder(SOURCE))


@torch.no_grad()
def test_relations_matter_to_their_sentence_alone() -> None:
    model = make_model("fra_transformer")
    changed = MASK.clone()
    changed[2] = as_mask(["xxxxxx", "xxxxxx", "..x...", "...xx.", "...xx.", ".....x"])
    difference = (model(**{**INPUT, "relation_mask": changed})[0] - model(**INPUT)[0]).abs().amax(dim=-1)
    assert difference[2][WORDS[2]].min() > 1e-4
    assert difference[:2][WORDS[:2]].max() < 1e-12


def count(**options: Any) -> int:
    return sum(parameter.numel() for parameter in build_model("fra_transformer", **options).parameters())


@pytest.mark.parametrize(
    ("fusion", "linear_layers"), [("linear", 0), ("gate", 1), ("concat-gate", 2), ("transform", 1)]
)
def test_parameter_count(fusion: str, linear_layers: int) -> None:
    """None in the encoder; in a decoder layer 2d² + d for each linear map, and attention, 4 (d² + d), if apart."""
    d = 12
    plain, fused = build_model("context_transformer"), build_model("fra_transformer", relation_fusion=fusion)
    assert fused.encoder.state_dict().keys() == plain.encoder.state_dict().keys()
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (plain, fused)]
    assert counts[1] - counts[0] == linear_layers * (2 * d**2 + d)
    if fusion == "linear":
        assert dict(fused.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    own = {"relation_fusion": fusion, "relation_layers": "all"}
    assert count(**own) - counts[0] == 3 * linear_layers * (2 * d**2 + d)
    assert count(**own, separate_relation_attention=True) - count(**own) == 3 * 4 * (d**2 + d)


@pytest.mark.parametrize(
    ("fusion", "modules"),
    [("linear", []), ("gate", ["gate"]), ("concat-gate", ["gate", "transform"]), ("transform", ["transform"])],
)
def test_names_in_checkpoints(fusion: str, modules: list[str]) -> None:
    """Checkpoints keep these names, in this order, in which the optimizer's state has the parameters."""
    model = build_model("fra_transformer", relation_fusion=fusion)
    prefix = "decoder.layers.2.source_parts.relations.fusion"
    assert list(model.mechanism_parameters()) == [
        f"{prefix}.{module}.{parameter}" for module in modules for parameter in ("weight", "bias")
    ]


@pytest.mark.parametrize(
    "options", [{"relation_fusion": fusion} for fusion in FUSIONS] + [{"relation_mask_operation": "multiply"}]
)
def test_gradients_are_those_of_finite_differences(options: dict[str, Any]) -> None:
    """Every parameter of the encoder and of the mechanism, by finite differences."""
    model = make_model("fra_transformer", decoder_layers=1, separate_relation_attention=True, **options)
    parameters = {
        name: parameter
        for name, parameter in model.named_parameters()
        if name.startswith("encoder.layers") or name in model.mechanism_parameters()
    }
    own = [name for name in parameters if name in model.mechanism_parameters()]
    assert len(own) == 8 + {"linear": 0, "concat-gate": 4}.get(options.get("relation_fusion", ""), 2)
    weights = torch.randn(*WORDS.shape, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def loss() -> Tensor:
        return (model(**INPUT)[0] * weights)[WORDS].sum()

    check_gradients(loss, parameters, rel=1e-4)


@pytest.mark.parametrize("operation", ["fill", "multiply"])
@multiplies_float16
def test_half_precision_without_nan(operation: str) -> None:
    """With padding, and with positions that see nothing but themselves."""
    model = build_model("fra_transformer", relation_mask_operation=operation, encoder_layers=3).half()
    model.encoder.layers[0].self_attn.q_proj.weight.data *= 100  # scores far from 0
    logits = model(**INPUT)[0]
    assert logits.dtype == torch.float16 and logits.isfinite().all()
    logits.float().logsumexp(dim=-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


# --- as a Transformer -------------------------------------------------------------------------------------------------


def test_a_model_without_its_input_says_so() -> None:
    with pytest.raises(ValueError, match="relation_mask"):
        make_model("fra_transformer")(**BATCH["net_input"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relation_layers": "2,4"}, "--relation-layers 2,4.*1 to 3"),
        ({"relation_lambda": 1.5, "relation_fusion": "linear"}, "--relation-lambda 1.5.*between 0 and 1"),
        ({"relation_lambda": -0.1}, "--relation-lambda -0.1"),
        ({"relation_fusion": "none", "relation_layers": "2"}, "--relation-layers.*--relation-fusion"),
        ({"relation_fusion": "none", "separate_relation_attention": True}, "--separate-relation.*--relation-fusion"),
        ({"relation_fusion": "none", "relation_ablation": "compare"}, "--relation-ablation.*--relation-fusion"),
        (
            {"relation_fusion": "none", "relation_mask_operation": "multiply"},
            "--relation-mask-op.*--relation-fusion",
        ),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_model("fra_transformer", **options)


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("fusion", ["gate", "concat-gate", "transform"])
@torch.no_grad()
def test_warm_started_it_is_the_transformer_where_there_are_no_relations(
    fusion: str, order: str, tmp_path: Path
) -> None:
    """A new fusion is the mean of the two contexts, which are the same there; also under parameters of its own, which
    start as copies."""
    options = norm_order_options(order)
    plain = make_model("context_transformer", **options).float()
    start = save_parameters(plain, tmp_path / "plain.pt")
    expected = plain.double()(**BATCH["net_input"])[0]
    for separate in (False, True):
        own: dict[str, Any] = {"relation_fusion": fusion, "separate_relation_attention": separate}
        model = build_model("fra_transformer", relation_layers="all", warm_start=start, **own, **options)
        model.double().eval()
        check(model(**BATCH["net_input"], relation_mask=FULL)[0], expected)
        assert (model(**INPUT)[0] - expected)[0].abs().max() > 1e-3

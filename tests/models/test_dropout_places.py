"""Dropout stands where fairseq's Transformer has it, and drops in translating what ``--retain-dropout`` keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.modules import FairseqDropout, MultiheadAttention

from fairseq_ctxgates.modules.attention import EncodedSentence, SentenceAttention, attend
from fairseq_ctxgates.modules.dropout import Dropout
from fairseq_ctxgates.relations.attention import MultiplyingAttention
from tests.helpers.models import assert_close, make_batch, make_model

pytestmark = pytest.mark.usefixtures("float64")

# Sources of one length, without padding, over which fairseq's own encoder cannot run everywhere (runs_stock_encoder).
INPUT = make_batch([[4, 5, 6], [9, 10, 7], [11, 12, 13]], [[14, 15, 16], [17, 18, 19], [6, 7, 8]])["net_input"]


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dropout doubles, so that its places can be compared without random numbers."""

    def double(self: Any, x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return 2 * x if self.p and (self.training or self.apply_during_inference) else x

    for dropout in (FairseqDropout, Dropout):
        monkeypatch.setattr(dropout, "forward", double)


@pytest.mark.usefixtures("doubling")
@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("kind", ["dropout", "activation_dropout"])
@torch.no_grad()
def test_what_fairseq_drops_is_dropped(kind: str, order: str) -> None:
    options: dict[str, Any] = {kind: 0.1, "decoder_normalize_before": order == "pre"}
    model, stock = make_model("context_transformer", **options), make_model("transformer", **options)
    stock.load_state_dict(model.state_dict(), strict=False)
    expected = stock.train()(**INPUT)[0]
    assert_close(model.train()(**INPUT)[0], expected)
    assert (stock.eval()(**INPUT)[0] - expected).abs().max() > 1e-3


def test_every_dropout_has_fairseqs_probability() -> None:
    def probabilities(arch: str) -> dict[str, float]:
        model = make_model(arch, dropout=0.1, attention_dropout=0.2, activation_dropout=0.3)
        return {name: module.p for name, module in model.named_modules() if isinstance(module, FairseqDropout)}

    expected = probabilities("transformer")
    assert set(expected.values()) == {0.1, 0.2, 0.3}
    assert probabilities("context_transformer") == expected


def test_attention_of_the_relation_mask_drops_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = MultiplyingAttention(12, 3, dropout=0.5, self_attention=True).train()
    monkeypatch.setattr(attention.dropout_module, "forward", lambda weights, inplace=False: 0 * weights)
    x, mask = torch.randn(6, 2, 12), torch.zeros(6, 6, 6, dtype=torch.bool)
    assert_close(attention(x, x, x, attn_mask=mask)[0], attention.out_proj.bias.expand_as(x))


@pytest.mark.parametrize(
    ("arch", "options"), [("isg_transformer", {}), ("fra_transformer", {"separate_relation_attention": True})]
)
def test_attention_of_a_mechanism_has_the_probability_of_the_layers(arch: str, options: dict[str, Any]) -> None:
    model = make_model(arch, dropout=0.1, attention_dropout=0.2, **options)
    attentions = {name: module for name, module in model.named_modules() if isinstance(module, MultiheadAttention)}
    assert any("source_parts" in name for name in attentions)
    assert {module.dropout_module.p for module in attentions.values()} == {0.2}


@pytest.mark.usefixtures("doubling")
@torch.no_grad()
def test_attention_drops_in_a_decoding_step_what_it_drops_otherwise() -> None:
    attention = SentenceAttention(12, 3, dropout=0.1, encoder_decoder_attention=True).double().eval()
    attention.dropout_module.make_generation_fast_("decoder", retain_dropout=True)
    query, states = torch.randn(1, 2, 12, dtype=torch.float64), torch.randn(4, 2, 12, dtype=torch.float64)
    sentence = EncodedSentence(states, torch.zeros(2, 4, dtype=torch.bool))
    context, weights = attend(attention, query, sentence, need_weights=True)
    found = attend(attention, query, sentence, incremental_state={}, need_weights=True)
    assert_close(found[0], context)
    assert weights is not None and found[1] is not None
    assert_close(found[1], weights)


def test_retained_dropout_drops_in_translating() -> None:
    dropout = Dropout(0.5, module_name="decoder").eval()
    x = torch.ones(1000)
    assert torch.equal(dropout(x), x)
    dropout.make_generation_fast_("decoder", retain_dropout=True)
    assert 400 < int(dropout(x).eq(0).sum()) < 600


@pytest.mark.parametrize("probability", [0.1, 0.9])
def test_dropout_drops_with_its_probability(probability: float) -> None:
    """And what it keeps is scaled up, so that the mean stays the same."""
    torch.manual_seed(1)
    dropped = Dropout(probability).train()(torch.ones(100_000))
    assert dropped.eq(0).double().mean() == pytest.approx(probability, abs=0.005)
    kept = dropped[dropped.ne(0)]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)), rtol=1e-4, atol=0)

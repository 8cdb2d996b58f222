"""RNNSearch and the gates on it, against the papers: Bahdanau et al. 2015, Tu et al. 2017, Kuang and Xiong 2018."""

from __future__ import annotations

import math
from argparse import Namespace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, data_utils
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from fairseq_ctxgates.context_gates.recurrent_gates import RecurrentContextGate
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.random_context import random_context, sentence_keys
from fairseq_ctxgates.models.rnnsearch import RNNSearchConfig, RNNSearchModel, pack
from fairseq_ctxgates.modules.additive_attention import AdditiveAttention, AttentionMemory, weighted_sum
from fairseq_ctxgates.modules.gated_recurrent_unit import BidirectionalGRU, gru
from fairseq_ctxgates.parts import RecurrentWidths
from tests.helpers.models import (
    DICTIONARY,
    EOS,
    PAD,
    RETURNED_GATES,
    SOURCES,
    TARGETS,
    make_batch,
    make_task,
    multiplies_float16,
)
from tests.helpers.reference_rnnsearch import (
    GATES,
    PRECEDING,
    Decoded,
    ReferenceRNNSearch,
    build_rnnsearch,
    make_rnnsearch,
)

pytestmark = pytest.mark.usefixtures("float64")

INPUT = make_batch(SOURCES, TARGETS)["net_input"]
EVERYTHING: dict[str, Any] = {"context_gate": "both", "inter_sentence_gate": True, "feedback_attention": True}
COMBINATIONS = list(product(GATES, (False, True), (False, True)))


def collate(rows: list[list[int]], left_pad: bool = True) -> Tensor:
    return data_utils.collate_tokens([torch.tensor(row) for row in rows], PAD, left_pad=left_pad)


def with_preceding(batch: dict[str, Any] = INPUT, left_pad: bool = True) -> dict[str, Any]:
    return {**batch, "preceding_tokens": collate(PRECEDING, left_pad)}


def check(model: Any, found: tuple[Tensor, dict[str, Any]], number: int, expected: Decoded, padding: int) -> None:
    """The decoder's output for one sentence of a batch equals the reference. Its source begins after ``padding``."""
    logits, extra = found
    length = len(expected.logits)
    attention = extra["attn"][0][number, :length]
    pairs = [(logits[number, :length], expected.logits), (attention[:, padding:], expected.attention)]
    for name, gate in (
        ("context_gates", expected.context_gate),
        ("inter_sentence_gates", expected.inter_sentence_gate),
    ):
        assert set(extra[name]) == ({1} if gate.size else set())
        if gate.size:
            pairs.append((extra[name][1][:length, number], gate))
    for actual, value in pairs:
        np.testing.assert_allclose(actual.numpy(), value, rtol=0, atol=1e-10)
    assert attention[:, :padding].eq(0).all()


# --- against the reference implementation -----------------------------------------------------------------------------


@pytest.mark.parametrize(("gate", "feedback", "inter_sentence"), COMBINATIONS)
@torch.no_grad()
def test_model_computes_what_the_papers_say(gate: str, feedback: bool, inter_sentence: bool) -> None:
    model = make_rnnsearch(context_gate=gate, feedback_attention=feedback, inter_sentence_gate=inter_sentence)
    inputs = with_preceding() if inter_sentence else INPUT
    found = model(**inputs, returns=(*RETURNED_GATES, "preceding_attention"))
    assert set(found[1]["preceding_attention"]) == ({1} if inter_sentence else set())
    reference = ReferenceRNNSearch(model, gate, feedback)
    for number, (source, target, preceding) in enumerate(zip(SOURCES, TARGETS, PRECEDING)):
        expected = reference.decode([*source, EOS], [EOS, *target], preceding if inter_sentence else ())
        if gate == "target":  # what leaves the model is the weight of the source
            expected = expected._replace(context_gate=1 - expected.context_gate)
        check(model, found, number, expected, padding=len(SOURCES[0]) - len(source))
        if inter_sentence:
            (attention,) = found[1]["preceding_attention"][1][:, number, : len(target) + 1]
            padding = attention.size(-1) - len(preceding)
            np.testing.assert_allclose(attention[:, padding:], expected.preceding_attention, rtol=0, atol=1e-10)
            assert attention[:, :padding].eq(0).all()


def test_combinations_differ() -> None:
    """With the same parameters where they share them, each combination gives other logits."""
    logits = []
    for gate, feedback, inter_sentence in COMBINATIONS:
        model = make_rnnsearch(context_gate=gate, feedback_attention=feedback, inter_sentence_gate=inter_sentence)
        full = make_rnnsearch(context_gate="both", feedback_attention=True, inter_sentence_gate=True).state_dict()
        model.load_state_dict({name: full[name] for name in model.state_dict()})
        logits.append(model(**(with_preceding() if inter_sentence else INPUT))[0])
    for first in range(len(logits)):
        for second in range(first):
            assert (logits[first] - logits[second]).abs().max() > 1e-3, (COMBINATIONS[first], COMBINATIONS[second])


@torch.no_grad()
def test_prediction_reads_the_sentences_context_only() -> None:
    """With c_t in the place of c_b in the prediction, the preceding sentence would reach the first word's prediction
    where the state cannot see it."""
    model = make_rnnsearch("isg_rnnsearch")
    for parameter in (model.decoder.deep_output.state_proj.weight, model.decoder.deep_output.word_proj.weight):
        parameter.zero_()
    logits, extra = model(**with_preceding(), returns=RETURNED_GATES)
    others = {**INPUT, "preceding_tokens": collate(PRECEDING[::-1])}
    other_logits, other_extra = model(**others, returns=RETURNED_GATES)
    torch.testing.assert_close(logits[:, 0], other_logits[:, 0], rtol=0, atol=1e-12)
    gates, other_gates = (found["inter_sentence_gates"][1] for found in (extra, other_extra))
    assert (gates - other_gates)[0, 0].abs().max() > 1e-3
    assert (logits - other_logits)[0, 1:].abs().max() > 1e-3  # from then on through attention


# --- by hand ----------------------------------------------------------------------------------------------------------


def vector(*components: float) -> Tensor:
    return torch.tensor([components], dtype=torch.float64)


def test_gru_by_hand() -> None:
    """State dim 1: r = σ(log 3) = 3/4, u = σ(-log 3) = 1/4, n = tanh(0.1 + 3/4 · 0.4) = tanh 0.4."""
    log3 = math.log(3)
    state = gru(vector(2.0), inputs=vector(log3 - 1, -log3 + 2, 0.1), recurrent=vector(1, -2, 0.4))
    torch.testing.assert_close(state, vector(0.75 * math.tanh(0.4) + 0.25 * 2))


@torch.no_grad()
def test_attention_by_hand() -> None:
    """Hidden layer of one: W s + b = 1, and keys such that tanh gives 1/2, 0, 0; v = 2 log 3, so the scores are log 3,
    0, 0. The third position is padding: α = (3/4, 1/4, 0), and the weighted sum is 3/4 · 8 + 1/4 · 4 = 7."""
    attention = AdditiveAttention(2, 3, 1).double()
    attention.query_proj.weight.copy_(vector(1, 2))
    attention.query_proj.bias.fill_(-1)
    attention.score.fill_(2 * math.log(3))
    keys = torch.tensor([[[math.atanh(0.5) - 1], [-1.0], [-1.0]]], dtype=torch.float64)
    values = torch.tensor([[[8.0], [4.0], [100.0]]], dtype=torch.float64)
    memory = AttentionMemory(keys, values, torch.tensor([[False, False, True]]))
    weights = attention(vector(2, 0), memory)
    torch.testing.assert_close(weights, vector(0.75, 0.25, 0))
    torch.testing.assert_close(weighted_sum(weights, values), vector(7.0))


@pytest.mark.parametrize(
    ("kind", "source", "targets", "weight"),
    [
        # z = (3/4, 1/4); the source context is (4, 8) in each of the three parts, the target's (16, 12) and (-4, 4)
        ("source", (3, 2), [(16, 12), (-4, 4)], (0.75, 0.25)),
        ("target", (4, 8), [(12, 3), (-3, 1)], (0.25, 0.75)),
        ("both", (3, 2), [(4, 9), (-1, 3)], (0.75, 0.25)),
    ],
)
@torch.no_grad()
def test_context_gate_by_hand(kind: str, source: tuple, targets: list[tuple], weight: tuple) -> None:
    """The gate's argument is log 3 in the first component, made of 1, 2 and the rest, and -log 3 in the second."""
    gate = RecurrentContextGate(kind, RecurrentWidths(word=1, state=2, context=1)).double()
    gate.from_state.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    log3 = math.log(3)
    found_source, found_targets, returned = gate(
        vector(1, 2),
        step_input=vector(2, 4),
        source=torch.cat([vector(4, 8).repeat(1, 3), vector(log3 - 3, -log3 - 2)], dim=-1),
        target_terms=[vector(16, 12).repeat(1, 3), vector(-4, 4).repeat(1, 3)],
    )
    torch.testing.assert_close(found_source, vector(*source).repeat(1, 3))
    for found, expected in zip(found_targets, targets):
        torch.testing.assert_close(found, vector(*expected).repeat(1, 3))
    torch.testing.assert_close(returned["context_gates"], vector(*weight))


# --- the parts that are torch's own, computed another way -------------------------------------------------------------


def test_encoder_is_torchs_gru() -> None:
    """On a CPU the encoder runs its own loop, which gives the states and gradients of torch's GRU."""
    module = BidirectionalGRU(3, 4).double()
    tokens = [collate(SOURCES), collate(PRECEDING, left_pad=False)]
    order, batch_sizes, _ = pack(tokens, PAD)
    assert batch_sizes.tolist() == [6, 6, 4, 2, 2, 1, 1]  # of lengths 5, 2, 3, 7, 3, 2
    found = []
    for own in (True, False):
        words = torch.randn(len(order), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        words.requires_grad_()
        states = module.states(words, batch_sizes) if own else module(PackedSequence(words, batch_sizes))[0].data
        gradients = torch.autograd.grad((states.cos() * states.exp()).sum(), [words, *module.parameters()])
        found.append((states, *gradients))
    for actual, expected in zip(*found):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_words_are_packed_by_position_with_the_longest_sentence_first() -> None:
    """Two batches of other lengths, padded on either side: all first words, those of the longest sentence first, ..."""
    tokens = [torch.tensor([[PAD, 4, 5], [6, 7, 8]]), torch.tensor([[9, PAD, PAD, PAD], [10, 11, 12, 13]])]
    order, batch_sizes, rows = pack(tokens, PAD)
    words = torch.cat([batch.flatten() for batch in tokens])[order]
    assert words.tolist() == [10, 6, 4, 9, 11, 7, 5, 12, 8, 13]
    assert batch_sizes.tolist() == [4, 3, 2, 1]
    assert words[rows].tolist() == [4, 6, 9, 10]


@pytest.mark.parametrize("onednn_is_faster", [True, False])
def test_shared_matrices_stay_shared(monkeypatch: pytest.MonkeyPatch, onednn_is_faster: bool) -> None:
    """Also where oneDNN's linear layers take the place of torch's."""
    monkeypatch.setattr("fairseq_ctxgates.modules.linear.onednn_is_faster", lambda: onednn_is_faster)
    model = build_rnnsearch(share_all_embeddings=True, decoder_embed_dim=6, decoder_output_dim=6)
    assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight
    assert any(type(module) is torch.nn.Linear for module in model.modules()) != onednn_is_faster


# --- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left_pad", [True, False])
@pytest.mark.parametrize("arch", ["rnnsearch", "isg_rnnsearch"])
@torch.no_grad()
def test_padding_changes_nothing(arch: str, left_pad: bool) -> None:
    """A sentence in a batch, padded on either side, is decoded as it is alone, and so are preceding sentences."""
    model = make_rnnsearch(arch, context_gate="both")
    sources = [[*source, EOS] for source in SOURCES]
    previous = INPUT["prev_output_tokens"]
    batch = {"src_tokens": collate(sources, left_pad), "src_lengths": None, "prev_output_tokens": previous}
    logits, extra = model(**with_preceding(batch, left_pad), returns=RETURNED_GATES)
    for number, (source, preceding) in enumerate(zip(sources, PRECEDING)):
        row, row_extra = model(
            torch.tensor([source]),
            None,
            previous[number : number + 1],
            preceding_tokens=torch.tensor([preceding]),
            returns=RETURNED_GATES,
        )
        torch.testing.assert_close(logits[number], row[0], rtol=0, atol=1e-10)
        attention = extra["attn"][0][number]
        is_token = batch["src_tokens"][number].ne(PAD)
        torch.testing.assert_close(attention[:, is_token], row_extra["attn"][0][0], rtol=0, atol=1e-10)
        assert attention[:, ~is_token].eq(0).all()
        for name in RETURNED_GATES:
            for layer, gate in row_extra[name].items():
                torch.testing.assert_close(extra[name][layer][:, number], gate[:, 0], rtol=0, atol=1e-10)


# --- the preceding sentence -------------------------------------------------------------------------------------------


@torch.no_grad()
def test_null_ablation_is_a_null_sentence() -> None:
    model, ablated = make_rnnsearch("isg_rnnsearch"), make_rnnsearch("isg_rnnsearch", inter_sentence_ablation="null")
    null = {**INPUT, "preceding_tokens": collate([[EOS] * 3] * 3)}
    torch.testing.assert_close(ablated(**with_preceding())[0], model(**null)[0], rtol=0, atol=1e-12)
    assert (model(**with_preceding())[0] - model(**null)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("gate", ["none", "both"])
@torch.no_grad()
def test_closed_ablation(gate: str) -> None:
    options: dict[str, Any] = {"context_gate": gate, "feedback_attention": True}
    model = make_rnnsearch("isg_rnnsearch", inter_sentence_ablation="closed", **options)
    found = model(**with_preceding(), returns=RETURNED_GATES)
    reference = ReferenceRNNSearch(model, closed=True, gate=gate, feedback=True)
    for number, (source, target, preceding) in enumerate(zip(SOURCES, TARGETS, PRECEDING)):
        expected = reference.decode([*source, EOS], [EOS, *target], preceding)
        check(model, found, number, expected, padding=len(SOURCES[0]) - len(source))
    # With C_2 the identity, as training begins, nothing is left of the mechanism.
    model.decoder.cell.source_parts.inter_sentence.gate.sentence_proj.weight.copy_(torch.eye(8))
    baseline = make_rnnsearch(**options)
    baseline.load_state_dict({name: model.state_dict()[name] for name in baseline.state_dict()})
    torch.testing.assert_close(model(**with_preceding())[0], baseline(**INPUT)[0], rtol=0, atol=1e-10)


@torch.no_grad()
def test_random_ablation() -> None:
    """The random contexts replace c_a. They depend on the sentence and the step, not on the batch."""
    model = make_rnnsearch("isg_rnnsearch", inter_sentence_ablation="random")
    found = model(**with_preceding(), returns=RETURNED_GATES)
    reference = ReferenceRNNSearch(model, feedback=True)
    for number, (source, target) in enumerate(zip(SOURCES, TARGETS)):
        keys = sentence_keys(torch.tensor([[*source, EOS]]), PAD)
        contexts = random_context(keys, 1, torch.arange(len(target) + 1), 8)[:, 0].double().numpy()
        expected = reference.decode([*source, EOS], [EOS, *target], preceding_contexts=contexts)
        check(model, found, number, expected, padding=len(SOURCES[0]) - len(source))


def test_missing_preceding_sentences() -> None:
    with pytest.raises(ValueError, match="no preceding_tokens"):
        make_rnnsearch("isg_rnnsearch")(**INPUT)


def test_plain_models_ignore_preceding_sentences() -> None:
    """An ensemble gives every model all inputs."""
    model = make_rnnsearch()
    torch.testing.assert_close(model(**with_preceding())[0], model(**INPUT)[0], rtol=0, atol=0)


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"context_gate": "source"}, {"context_gate": "target"}, EVERYTHING], ids=str)
def test_gradients_are_the_differences(options: dict[str, Any]) -> None:
    """The derivative of each parameter in a random direction, against the difference of two forward passes."""
    model = make_rnnsearch(**options)
    batch = with_preceding(make_batch(SOURCES, [[14, 15, 16], [17, 18, 19], [6, 7, 8]])["net_input"])
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(3, 4, 20, generator=generator, dtype=torch.float64)

    def loss() -> Tensor:
        logits, extra = model(**batch, returns=RETURNED_GATES)
        gates = [gate.square().sum() for name in RETURNED_GATES for gate in extra[name].values()]
        return (logits.log_softmax(dim=-1) * weights).sum() + sum(gates)

    def loss_at(parameter: Tensor, direction: Tensor, distance: float) -> float:
        with torch.no_grad():
            parameter += distance * direction
            found = float(loss())
            parameter -= distance * direction
        return found

    loss().backward()
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        difference = (loss_at(parameter, direction, 1e-5) - loss_at(parameter, direction, -1e-5)) / 2e-5
        derivative = float((parameter.grad * direction).sum())
        assert abs(derivative) > 1e-6, name  # every parameter is used, as distributed training wants it
        assert difference == pytest.approx(derivative, rel=1e-5, abs=1e-6), name


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_new_model() -> None:
    """It predicts all words nearly alike, every parameter has a gradient, and recurrent matrices are orthogonal."""
    torch.manual_seed(1)
    sizes = dict.fromkeys(("encoder_hidden_size", "decoder_hidden_size", "decoder_output_dim"), 32)
    model = build_rnnsearch(**{**EVERYTHING, **sizes}).double()
    logits = model(**with_preceding())[0]
    assert logits.std(dim=-1).max() < 0.5
    logits.log_softmax(dim=-1)[..., 4].sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-9, name
    units = model.encoder.gru.weight_hh_l0, model.encoder.gru.weight_hh_l0_reverse, model.decoder.cell.state_proj.weight
    for part in (part for weight in units for part in weight.detach().chunk(3)):
        torch.testing.assert_close(part @ part.T, torch.eye(32, dtype=torch.float64), rtol=0, atol=1e-5)


def test_sizes_of_the_papers() -> None:
    """620 and 1000 wide, a maxout layer of 500; an encoder of 2 · 3 · (620 + 1000 + 2) · 1000 parameters, and so on."""
    model = build_rnnsearch(
        encoder_embed_dim=620,
        decoder_embed_dim=None,
        encoder_hidden_size=1000,
        decoder_hidden_size=None,
        decoder_output_dim=None,
    )
    embeddings = 2 * 20 * 620
    encoder = 2 * 3 * (620 + 1000 + 2) * 1000
    attention = 1000 * 1000 + 1000 + 2000 * 1000 + 1000
    recurrent_unit = 3 * (620 + 1 + 2000 + 1 + 1000 + 1) * 1000
    output = 1000 * 1000 + 1000 * (620 + 1000 + 1 + 2000) + 500 * 20  # with W_s
    assert sum(parameter.numel() for parameter in model.parameters()) == (
        embeddings + encoder + attention + recurrent_unit + output
    )


@pytest.mark.parametrize("arch", ["rnnsearch", "ctxgate_rnnsearch", "isg_rnnsearch"])
def test_each_preset_has_its_gates_and_streams(arch: str) -> None:
    model = build_rnnsearch(arch)
    assert (model.layers_that_return("context_gates"), model.required_streams) == (
        (1,) if arch == "ctxgate_rnnsearch" else (),
        ("preceding",) if arch == "isg_rnnsearch" else (),
    )
    assert (model.decoder.cell.feedback_proj is not None) == (arch == "isg_rnnsearch")
    own = {name for name in model.state_dict() if name not in model.mechanism_parameters()}
    assert own == set(build_rnnsearch(feedback_attention=arch == "isg_rnnsearch").state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share_decoder_input_output_embed": True}, "--decoder-output-dim 3.* 5 wide"),
        ({"share_all_embeddings": True, "decoder_output_dim": 5}, "--share-all-embeddings: --decoder-embed-dim"),
        ({"inter_sentence_gate": True, "inter_sentence_layers": "2"}, "--inter-sentence-layers 2"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_rnnsearch(**options)


def test_targets_are_padded_on_the_right() -> None:
    with pytest.raises(UserError, match="--left-pad-target: RNNSearch's decoder would read the padding first"):
        RNNSearchModel.build_model(RNNSearchConfig(), make_task(left_pad_target=True))


def test_a_task_without_a_configuration() -> None:
    """As fairseq's for several language pairs, which have arguments."""
    task = Namespace(source_dictionary=DICTIONARY, target_dictionary=DICTIONARY, cfg=None)
    assert RNNSearchModel.build_model(RNNSearchConfig(), task).max_positions()


def test_all_embeddings_need_one_dictionary() -> None:
    task = Namespace(source_dictionary=DICTIONARY, target_dictionary=Dictionary(), cfg=None)
    with pytest.raises(UserError, match="--share-all-embeddings needs a joined dictionary"):
        RNNSearchModel.build_model(RNNSearchConfig(share_all_embeddings=True), task)


def test_each_dropout_is_at_its_place() -> None:
    """Each of the three dropouts is at its place, and has the value of --dropout by default."""
    model = build_rnnsearch(dropout=0.3, hidden_dropout=0.2, output_dropout=0.0)
    assert (model.encoder.embedding_dropout.p, model.decoder.embedding_dropout.p) == (0.3, 0.3)
    assert (model.encoder.hidden_dropout.p, model.decoder.hidden_dropout.p) == (0.2, 0.2)
    assert model.decoder.output_dropout.p == 0.0


@pytest.mark.parametrize(
    "place",
    [
        *("encoder.embedding_dropout", "encoder.hidden_dropout"),
        *("decoder.embedding_dropout", "decoder.hidden_dropout", "decoder.output_dropout"),
    ],
)
@torch.no_grad()
def test_dropout_drops(place: str) -> None:
    """Each by itself."""
    model = make_rnnsearch()
    expected = model(**INPUT)[0]
    model.get_submodule(place).p = 0.5
    assert (model.train()(**INPUT)[0] - expected).abs().max() > 1e-3


@torch.no_grad()
def test_the_decoder_starts_from_a_state_that_is_not_dropped() -> None:
    """From the backward state of the source's first word, as it is before dropout."""
    model = make_rnnsearch()
    expected = model.encoder(INPUT["src_tokens"])
    model.encoder.hidden_dropout.p = 0.5
    found = model.encoder.train()(INPUT["src_tokens"])
    torch.testing.assert_close(found["first_backward"], expected["first_backward"])
    assert (found["encoder_out"][0] - expected["encoder_out"][0]).abs().max() > 1e-3


@torch.no_grad()
def test_output_dropout_is_of_what_the_output_layer_reads() -> None:
    """As Kuang and Xiong 2018 have it, and nothing else is dropped: each of the features is 0 or doubled."""
    model = make_rnnsearch("isg_rnnsearch", output_dropout=0.5)
    expected = model(**with_preceding(), features_only=True)[0]
    torch.manual_seed(1)
    features = model.train()(**with_preceding(), features_only=True)[0]
    is_dropped = features.eq(0)
    torch.testing.assert_close(features, (2 * expected).masked_fill(is_dropped, 0), rtol=0, atol=1e-10)
    assert 0.3 < is_dropped.double().mean() < 0.7
    torch.manual_seed(1)
    logits = model(**with_preceding())[0]
    torch.testing.assert_close(logits, features @ model.decoder.output_projection.weight.T, rtol=0, atol=1e-10)


@multiplies_float16
@torch.no_grad()
def test_half_precision() -> None:
    """The scores keep their digits in float16. (With logistic functions each would have a constant part of 2048.)"""
    generator = torch.Generator().manual_seed(1)
    attention = AdditiveAttention(8, 8, 512).half()
    attention.query_proj.weight.zero_()
    attention.score.fill_(4.0)
    keys = (0.01 * torch.randn(2, 5, 512, generator=generator)).half()
    memory = AttentionMemory(keys, keys, torch.tensor([[False] * 5, [True, True, False, False, False]]))
    state = torch.zeros(4, 8).half()
    found = attention(state, memory)
    exact = memory._replace(keys=keys.double(), values=keys.double())
    expected = attention.double()(state.double(), exact)
    assert found.dtype == torch.half and found[2:, :2].eq(0).all()
    assert expected[0].max() - expected[0].min() > 0.2
    torch.testing.assert_close(found, expected, rtol=0, atol=0.03, check_dtype=False)

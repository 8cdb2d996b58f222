"""RNNSearch: step by step against all at once, beams that share a sentence, beam search, ensembles, alignment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from omegaconf import OmegaConf
from torch import Tensor

from tests.helpers.models import (
    DICTIONARY,
    EOS,
    PAD,
    RETURNED_GATES,
    assert_close,
    check_step,
    make_batch,
    make_decoding_batch,
    make_model,
    two_beams,
)
from tests.helpers.reference_rnnsearch import make_rnnsearch

pytestmark = pytest.mark.usefixtures("float64", "no_grad")

BATCH = make_decoding_batch()
SOURCE, LENGTHS = BATCH["net_input"]["src_tokens"], BATCH["net_input"]["src_lengths"]
PREVIOUS = BATCH["net_input"]["prev_output_tokens"]
PRECEDING = torch.tensor([[7, 9, 16, 4, 4, 18, EOS], [PAD] * 4 + [EOS] * 3, [PAD] * 5 + [5, EOS]])
INPUT = {"src_tokens": SOURCE, "src_lengths": LENGTHS, "preceding_tokens": PRECEDING}

MODELS: list[dict[str, Any]] = [
    {},
    {"feedback_attention": True},
    {"context_gate": "both"},
    {"inter_sentence_gate": True},
    {"context_gate": "source", "inter_sentence_gate": True, "feedback_attention": True},
    {"inter_sentence_gate": True, "inter_sentence_ablation": "random"},
    {"smoothing": "fcwm", "smoothing_side": "both", "smoothing_words": "all"},
    {"smoothing": "ccwm", "smoothing_side": "both", "context_gate": "target", "inter_sentence_gate": True},
]


# --- one step after another -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_incremental_equals_full_decoding(options: dict[str, Any]) -> None:
    model = make_rnnsearch(**options)
    expected = model(**INPUT, prev_output_tokens=PREVIOUS, returns=RETURNED_GATES)
    encoder_out = model.encoder(**INPUT)
    state: dict[str, Any] = {}
    for step in range(PREVIOUS.size(1)):
        prefix = PREVIOUS[:, : step + 1]
        found = model.decoder(prefix, encoder_out=encoder_out, incremental_state=state, returns=RETURNED_GATES)
        check_step(found, expected, step)


@pytest.mark.parametrize("position", [1, 3])
@pytest.mark.parametrize("options", MODELS, ids=str)
def test_no_look_ahead(options: dict[str, Any], position: int) -> None:
    """A target word changes later predictions and no earlier one."""
    model = make_rnnsearch(**options)
    changed = PREVIOUS.clone()
    changed[:, position] = 12
    logits = [model(**INPUT, prev_output_tokens=previous)[0] for previous in (PREVIOUS, changed)]
    assert_close(logits[0][:, :position], logits[1][:, :position])
    assert (logits[0] - logits[1])[:, position:].abs().amax(dim=(0, 2)).min() > 1e-4


# --- beams ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_beams_are_reordered(options: dict[str, Any]) -> None:
    """Three sentences with two beams each, which change places; then the first sentence is finished. Beams share what
    is encoded."""
    model = make_rnnsearch(**options)
    encoder_out, rows, prefixes, state = two_beams(model, model.encoder(**INPUT))

    for order in ([1, 0, 3, 3, 4, 4], [3, 2, 5, 4]):
        beams = torch.tensor(order)
        rows = rows[beams]
        words = torch.arange(10, 10 + len(beams)).unsqueeze(1)
        prefixes = torch.cat([prefixes[beams], words], dim=1)
        model.decoder.reorder_incremental_state_scripting(state, beams)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, beams)
        assert len(encoder_out["encoder_out"][0]) == len(beams) // 2
        found = model.decoder(prefixes, encoder_out=encoder_out, incremental_state=state, returns=RETURNED_GATES)
        inputs = {name: value[rows] for name, value in INPUT.items()}
        check_step(found, model(**inputs, prev_output_tokens=prefixes, returns=RETURNED_GATES), -1)


def many_sentences() -> dict[str, Tensor]:
    """Ten sentences of one to five words, each the preceding one of another."""
    words = torch.randint(4, 20, (10, 5), generator=torch.Generator().manual_seed(1)).tolist()
    net_input = make_batch([row[: 1 + number % 5] for number, row in enumerate(words)], [[4]] * 10)["net_input"]
    source = net_input["src_tokens"]
    return {"src_tokens": source, "src_lengths": net_input["src_lengths"], "preceding_tokens": source.roll(3, dims=0)}


@pytest.mark.parametrize("with_transformer", [False, True])
@pytest.mark.parametrize("options", MODELS, ids=str)
def test_beam_search_scores_equal_forced_decoding(options: dict[str, Any], with_transformer: bool) -> None:
    """For the model alone, and for an ensemble with a plain Transformer, which averages probabilities."""
    models = [make_rnnsearch(**options), *([make_model("context_transformer", seed=2)] if with_transformer else [])]
    models[0].decoder.output_projection.weight[EOS] = 1.5  # sentences end, some sooner than others
    net_input = many_sentences()
    generator = SequenceGenerator(models, DICTIONARY, beam_size=3, max_len_b=12)
    hypotheses = generator.generate(models, {"net_input": dict(net_input)})
    assert len({len(beam["tokens"]) for beams in hypotheses for beam in beams}) > 1
    for row, beams in enumerate(hypotheses):
        inputs = {name: value[row : row + 1] for name, value in net_input.items()}
        assert len(beams) == 3
        for hypothesis in beams:
            tokens = hypothesis["tokens"]
            previous = torch.cat([torch.tensor([EOS]), tokens[:-1]]).unsqueeze(0)
            given = [model(**inputs, prev_output_tokens=previous) for model in models]
            mean = torch.stack([logits[0].softmax(dim=-1) for logits, _ in given]).mean(dim=0)
            expected = mean.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).log()
            torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=0, atol=1e-5, check_dtype=False)
            attention = torch.stack([extra["attn"][0][0] for _, extra in given]).mean(dim=0).t()
            torch.testing.assert_close(hypothesis["attention"], attention, rtol=0, atol=1e-5, check_dtype=False)


def test_sequence_scorer() -> None:
    """``fairseq-generate --score-reference``, and what ``fairseq-validate`` computes."""
    model = make_rnnsearch("isg_rnnsearch", context_gate="both")
    net_input = {**INPUT, "prev_output_tokens": PREVIOUS}
    scored = SequenceScorer(DICTIONARY).generate([model], {**BATCH, "net_input": net_input})
    log_probabilities = model(**net_input)[0].log_softmax(dim=-1)
    expected = log_probabilities.gather(-1, BATCH["target"].unsqueeze(-1)).squeeze(-1)
    for row, (hypothesis,) in enumerate(scored):
        torch.testing.assert_close(hypothesis["positional_scores"], expected[row], rtol=0, atol=1e-6, check_dtype=False)


def test_alignment_of_translations() -> None:
    """``fairseq-generate --print-alignment``: source positions as they are in the input, padding included."""
    model = make_rnnsearch()
    model.prepare_for_inference_(OmegaConf.create({"generation": {"beam": 2, "print_alignment": "hard"}}))
    generator = SequenceGeneratorWithAlignment([model], DICTIONARY, beam_size=2, max_len_b=5)
    hypotheses = generator.generate([model], {"net_input": {"src_tokens": SOURCE, "src_lengths": LENGTHS}})
    for row, beams in enumerate(hypotheses):
        padding = int(SOURCE[row].eq(PAD).sum())
        for hypothesis in beams:
            words = hypothesis["attention"][padding:-1, : len(hypothesis["tokens"]) - 1]
            expected = [(int(source), target) for target, source in enumerate(words.argmax(dim=0))]
            found = [(int(source), int(target)) for source, target in hypothesis["alignment"]]
            assert sorted(found) == sorted(expected)


# --- what leaves the model --------------------------------------------------------------------------------------------


def test_only_the_positions_asked_for() -> None:
    model = make_rnnsearch()
    positions = torch.tensor([0, 2, 3, 5, 7, 8])  # of sentences of five
    logits, extra = model(**INPUT, prev_output_tokens=PREVIOUS, output_positions=positions, return_attention=False)
    assert_close(logits, model(**INPUT, prev_output_tokens=PREVIOUS)[0].flatten(0, 1)[positions])
    assert extra["attn"] == [None]


def test_features_give_the_logits_through_the_output_layer() -> None:
    model = make_rnnsearch()
    features, _ = model(**INPUT, prev_output_tokens=PREVIOUS, features_only=True)
    assert features.shape == (3, 5, 3)
    assert_close(model.decoder.output_layer(features), model(**INPUT, prev_output_tokens=PREVIOUS)[0])


def test_gates_are_returned_when_asked_for() -> None:
    model = make_rnnsearch("ctxgate_rnnsearch", inter_sentence_gate=True)
    extra = model(**INPUT, prev_output_tokens=PREVIOUS)[1]
    assert "context_gates" not in extra and "inter_sentence_gates" not in extra
    with torch.enable_grad():
        extra = model(**INPUT, prev_output_tokens=PREVIOUS, returns=RETURNED_GATES)[1]
    for name, width in (("context_gates", 7), ("inter_sentence_gates", 8)):
        (gate,) = extra[name].values()
        assert gate.shape == (5, 3, width) and gate.requires_grad
        assert gate.min() > 0 and gate.max() < 1

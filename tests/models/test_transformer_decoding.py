"""Decoding with the Transformer: step by step against all at once, beams, ensembles, attention."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from fairseq.modules import FairseqDropout
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from omegaconf import OmegaConf

from fairseq_ctxgates.modules.beams import sentences_of_beams
from fairseq_ctxgates.relations.mask import pack_tuples, relation_mask
from tests.helpers.models import (
    DICTIONARY,
    EOS,
    NORM_ORDERS,
    PAD,
    RETURNED_GATES,
    assert_close,
    check_step,
    make_decoding_batch,
    make_model,
    norm_order_options,
    runs_stock_encoder,
    two_beams,
)

pytestmark = pytest.mark.usefixtures("float64", "no_grad")

BATCH = make_decoding_batch()
# Models without the inter-sentence gate or relations ignore these.
PRECEDING = torch.tensor([[PAD, PAD, 15, 16, EOS], [PAD, PAD, EOS, EOS, EOS], [4, 17, 18, 19, EOS]])
MASK = torch.ones(3, 6, 6, dtype=torch.bool)  # of two tuples, of none, and of one
MASK[0] = torch.from_numpy(relation_mask(pack_tuples([[0, 1, 2], [2, 4]]), 6))
MASK[2, 2:, 2:] = torch.from_numpy(relation_mask(pack_tuples([[0, 2]]), 4))
STREAMS = {"preceding_tokens": PRECEDING, "relation_mask": MASK}
BATCH["net_input"].update(STREAMS)
SOURCE, LENGTHS = BATCH["net_input"]["src_tokens"], BATCH["net_input"]["src_lengths"]
PREVIOUS = BATCH["net_input"]["prev_output_tokens"]

SMOOTHED = {"smoothing_side": "both", "smoothing_words": "all"}
MECHANISMS: dict[str, Any] = {
    "none": ("context_transformer", {}),
    "context gate": ("rcg_transformer", {}),
    "inter-sentence gate": ("isg_transformer", {}),
    "smoothing": ("car_transformer", SMOOTHED),
    "smoothing of unknown words": ("car_transformer", {"smoothing": "ccwm", "smoothing_side": "both"}),
    "relations": ("fra_transformer", {}),
    "relations in all layers": ("fra_transformer", {"relation_layers": "all", "relation_fusion": "gate"}),
    "attention over relations apart": ("fra_transformer", {"separate_relation_attention": True}),
    "multiplied by relations": (
        "fra_transformer",
        {"relation_mask_operation": "multiply", "relation_fusion": "linear"},
    ),
    "Compare Fusion": ("fra_transformer", {"relation_ablation": "compare", "relation_fusion": "concat-gate"}),
    "all": (
        "rcg_transformer",
        {"inter_sentence_gate": True, "smoothing": "ccwm", "relation_fusion": "transform", **SMOOTHED},
    ),
}


def make(mechanism: str, **options: Any) -> Any:
    """A model with one of the mechanisms, or with all."""
    arch, own = MECHANISMS[mechanism]
    return make_model(arch, **{**own, **options})


def encode(model: Any) -> Any:
    return model.encoder(SOURCE, LENGTHS, **STREAMS)


def alone(row: int) -> dict[str, Any]:
    """A model's input for one sentence of the batch, without its padding."""
    words = SOURCE[row].ne(PAD)
    streams = {"preceding_tokens": PRECEDING[row : row + 1], "relation_mask": MASK[row : row + 1, words][:, :, words]}
    return {"src_tokens": SOURCE[row : row + 1, words], "src_lengths": LENGTHS[row : row + 1], **streams}


# --- one step after another -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [*map(norm_order_options, NORM_ORDERS), {"decoder_learned_pos": False}])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_incremental_equals_full_decoding(mechanism: str, options: dict[str, Any]) -> None:
    model = make(mechanism, **options)
    expected = model(**BATCH["net_input"], returns=RETURNED_GATES)
    encoder_out = encode(model)
    state: dict[str, Any] = {}
    for step in range(PREVIOUS.size(1)):
        prefix = PREVIOUS[:, : step + 1]
        found = model.decoder(prefix, encoder_out=encoder_out, incremental_state=state, returns=RETURNED_GATES)
        check_step(found, expected, step)


@pytest.mark.parametrize("position", [1, 3])
@pytest.mark.parametrize(
    ("mechanism", "order"),
    [*(("context gate", order) for order in NORM_ORDERS), ("smoothing", "post"), ("all", "post")],
)
def test_no_look_ahead(mechanism: str, order: str, position: int) -> None:
    """A target word changes later predictions and no earlier one."""
    model = make(mechanism, **norm_order_options(order))
    changed = PREVIOUS.clone()
    changed[:, position] = 19
    logits, gates = [], []
    for previous in (PREVIOUS, changed):
        step_logits, extra = model(SOURCE, LENGTHS, previous, **STREAMS, returns=RETURNED_GATES)
        logits.append(step_logits)
        gates.append({(name, layer): gate for name in RETURNED_GATES for layer, gate in extra[name].items()})
    assert_close(logits[0][:, :position], logits[1][:, :position])
    assert (logits[0] - logits[1])[:, position:].abs().amax(dim=(0, 2)).min() > 1e-4
    for place in gates[0]:
        assert_close(gates[0][place][:position], gates[1][place][:position])
        assert (gates[0][place] - gates[1][place])[position:].abs().amax(dim=(1, 2)).min() > 1e-4


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_padding_changes_nothing(mechanism: str) -> None:
    """A sentence is decoded in a batch as it is alone."""
    model = make(mechanism)
    logits, extra = model(**BATCH["net_input"], returns=RETURNED_GATES)
    for row in range(len(SOURCE)):
        row_logits, row_extra = model(**alone(row), prev_output_tokens=PREVIOUS[row : row + 1], returns=RETURNED_GATES)
        assert_close(row_logits[0], logits[row])
        for name in RETURNED_GATES:
            for layer, gate in row_extra[name].items():
                assert_close(gate[:, 0], extra[name][layer][:, row])


@pytest.mark.parametrize("mechanism", ["none", "multiplied by relations"])
def test_dropout_has_fairseqs_names(mechanism: str) -> None:
    """``fairseq-generate --retain-dropout --retain-dropout-modules TransformerDecoder MultiheadAttention``"""

    def names(model: Any) -> dict[str, str]:
        dropouts = ((place, module) for place, module in model.named_modules() if isinstance(module, FairseqDropout))
        return {place: module.module_name for place, module in dropouts}

    expected = names(make_model("transformer", from_checkpoint=True))
    assert set(expected.values()) == {
        *("TransformerEncoder", "TransformerEncoderLayerBase"),
        *("TransformerDecoder", "TransformerDecoderLayerBase", "MultiheadAttention"),
    }
    assert names(make(mechanism)) == expected


@pytest.mark.parametrize(
    ("order", "sentences", "rows", "expected"),
    [
        ([0, 0, 1, 1], 2, 2, None),  # two beams of each sentence
        ([0, 1, 0, 1], 2, 2, [0, 1, 0, 1]),  # not beams, which are neighbours
        ([1, 0, 3, 3], 2, 4, None),  # beams change places
        ([5, 4, 1, 1], 3, 6, [2, 0]),  # a sentence is finished
        ([0, 1, 2], 3, 3, None),  # one beam of each sentence
        ([0, 2], 3, 3, [0, 2]),
        ([0, 0, 1], 2, 2, [0, 0, 1]),
    ],
)
def test_sentences_of_beams(order: list[int], sentences: int, rows: int, expected: list[int] | None) -> None:
    found = sentences_of_beams(torch.tensor(order), sentences, rows)
    assert (None if found is None else found.tolist()) == expected


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_beams_are_reordered(mechanism: str) -> None:
    """Three sentences with two beams each, which change places; then the first sentence is finished. Beams share what
    is encoded."""
    model = make(mechanism)
    encoder_out, rows, prefixes, state = two_beams(model, encode(model))

    for order, words in (([1, 0, 3, 3, 4, 4], [10, 11, 12, 13, 14, 15]), ([3, 2, 5, 4], [16, 17, 18, 19])):
        beams = torch.tensor(order)
        rows = rows[beams]
        prefixes = torch.cat([prefixes[beams], torch.tensor(words).unsqueeze(1)], dim=1)
        model.decoder.reorder_incremental_state_scripting(state, beams)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, beams)
        assert encoder_out["encoder_out"][0].size(1) == len(beams) // 2
        logits, extra = model.decoder(
            prefixes, encoder_out=encoder_out, incremental_state=state, returns=RETURNED_GATES
        )
        expected, expected_extra = model(
            SOURCE[rows],
            LENGTHS[rows],
            prefixes,
            preceding_tokens=PRECEDING[rows],
            relation_mask=MASK[rows],
            returns=RETURNED_GATES,
        )
        assert_close(logits[:, 0], expected[:, -1])
        for name in RETURNED_GATES:
            for layer, gate in extra[name].items():
                assert_close(gate[0], expected_extra[name][layer][-1])


# --- beam search ------------------------------------------------------------------------------------------------------


def plain_transformer() -> Any:
    """fairseq's Transformer, as our task loads it from a checkpoint: it accepts input that it does not read."""
    return make_model("transformer", seed=2, from_checkpoint=True)


def without_targets(net_input: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in net_input.items() if name != "prev_output_tokens"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("ensemble", [False, True])
def test_beam_search_scores_equal_forced_decoding(mechanism: str, ensemble: bool) -> None:
    """For the model alone, and for an ensemble with a plain Transformer, which averages probabilities."""
    models = [make(mechanism), *([plain_transformer()] if ensemble else [])]
    generator = SequenceGenerator(models, DICTIONARY, beam_size=3, max_len_b=6)
    hypotheses = generator.generate(models, {"net_input": without_targets(BATCH["net_input"])})
    assert [len(beams) for beams in hypotheses] == [3, 3, 3]
    for row, beams in enumerate(hypotheses):
        for hypothesis in beams:
            tokens = hypothesis["tokens"]
            assert tokens[-1] == EOS and len(tokens) > 1
            previous = torch.cat([torch.tensor([EOS]), tokens[:-1]]).unsqueeze(0)
            net_input = {**alone(row), "prev_output_tokens": previous}
            probabilities = [model(**net_input)[0][0].softmax(dim=-1) for model in models]
            mean = torch.stack(probabilities).mean(dim=0)
            expected = mean.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).log()
            torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=0, atol=1e-5, check_dtype=False)
            assert float(hypothesis["score"]) == pytest.approx(float(expected.mean()), abs=1e-5)


@pytest.mark.parametrize("all_hiddens", [False, True])
def test_the_outputs_of_layers_are_kept_where_they_are_asked_for(all_hiddens: bool) -> None:
    """A translation does not need the memory of all the encoder's layers at once."""
    model = make_model("context_transformer", encoder_layers=6)
    outputs: list[weakref.ref] = []
    alive: list[int] = []
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda module, inputs, output: outputs.append(weakref.ref(output)))
        layer.register_forward_hook(lambda *_: alive.append(sum(output() is not None for output in outputs)))
    encoder_out = model.encoder(SOURCE, LENGTHS, return_all_hiddens=all_hiddens)
    assert alive[-1] == (6 if all_hiddens else 2)  # the last layer's input and output
    assert len(encoder_out["encoder_states"]) == (7 if all_hiddens else 0)


def test_gated_and_plain_model_differ() -> None:
    """The test of the ensemble needs two models that differ."""
    gated, plain = make_model("rcg_transformer"), plain_transformer()
    assert (gated(**BATCH["net_input"])[0] - plain(**BATCH["net_input"])[0]).abs().max() > 0.1


# --- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_attention_is_a_distribution_over_the_source(mechanism: str) -> None:
    attention = make(mechanism)(**BATCH["net_input"])[1]["attn"][0]
    assert attention.shape == (*PREVIOUS.shape, SOURCE.size(1))
    torch.testing.assert_close(attention.sum(dim=-1), torch.ones_like(attention[..., 0]))
    is_padding = SOURCE.eq(PAD).unsqueeze(1).expand_as(attention)
    assert attention[is_padding].max() == 0 < attention[~is_padding].min()


@runs_stock_encoder
@pytest.mark.parametrize(
    "options",
    [{}, {"alignment_layer": 1}, {"alignment_layer": 0, "alignment_heads": 2}, {"full_context_alignment": True}],
)
def test_attention_is_fairseqs(options: dict[str, Any]) -> None:
    model = make_model("context_transformer")
    transformer = make_model("transformer")
    # fairseq 0.12.2's encoder layers hold more names, for a fast path that is not used here.
    transformer.load_state_dict(model.state_dict(), strict=False)
    encoder_out = transformer.encoder(SOURCE, LENGTHS)
    expected_logits, expected = transformer.decoder(PREVIOUS, encoder_out=encoder_out, **options)
    logits, extra = model(**BATCH["net_input"], **options)
    assert_close(logits, expected_logits)
    torch.testing.assert_close(extra["attn"][0], expected["attn"][0])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_alignment_of_translations(mechanism: str) -> None:
    """``fairseq-generate --print-alignment``."""
    model = make(mechanism)
    model.prepare_for_inference_(OmegaConf.create({"generation": {"beam": 2, "print_alignment": "hard"}}))
    generator = SequenceGeneratorWithAlignment([model], DICTIONARY, beam_size=2, max_len_b=5)
    hypotheses = generator.generate([model], {"net_input": without_targets(BATCH["net_input"])})
    for row, beams in enumerate(hypotheses):
        for hypothesis in beams:
            tokens = hypothesis["tokens"]
            previous = torch.cat([torch.tensor([EOS]), tokens[:-1]]).unsqueeze(0)
            expected = model(
                SOURCE[row : row + 1],
                LENGTHS[row : row + 1],
                previous,
                **{n: t[row : row + 1] for n, t in STREAMS.items()},
            )[1]["attn"][0][0].t()
            torch.testing.assert_close(hypothesis["attention"], expected, check_dtype=False)
            assert len(hypothesis["alignment"]) == len(tokens) - 1  # one for each word

"""Several preceding sentences: each is encoded by itself, and attention reads them all; with one it is the paper's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.tasks.alignments import AlignmentGenerator
from tests.helpers.models import (
    BEFORE,
    DICTIONARY,
    EOS,
    PAD,
    SOURCES,
    TARGETS,
    make_batch,
    make_model,
    make_side_inputs,
    preceding_inputs,
)
from tests.helpers.reference_rnnsearch import make_rnnsearch

pytestmark = pytest.mark.usefixtures("float64")

BATCH = make_batch(SOURCES, TARGETS)["net_input"]


def make(arch: str, number: int, **options: Any) -> Any:
    build = make_rnnsearch if "rnnsearch" in arch else make_model
    return build(arch, inter_sentence_context=number, **options)


def encode_alone(model: Any, sentence: list[int]) -> Tensor:
    """The states of a sentence that the encoder reads as a source of its own, (its length, width)."""
    inputs = {"preceding_tokens": torch.tensor([[EOS, EOS, EOS]])}
    if "relations" in [mechanism.name for mechanism in model.mechanisms]:
        inputs["relation_mask"] = torch.ones(1, len(sentence), len(sentence), dtype=torch.bool)
    states = model.encoder(torch.tensor([sentence]), None, **inputs)["encoder_out"][0]
    return states[0] if is_rnnsearch(model) else states[:, 0]


def is_rnnsearch(model: Any) -> bool:
    return hasattr(model.encoder, "gru")


@pytest.mark.parametrize("left_pad", [True, False])
@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("isg_transformer", {}),
        ("isg_transformer", {"encoder_learned_pos": False}),
        ("isg_transformer", {"smoothing": "fcwm", "smoothing_words": "all"}),
        ("fra_transformer", {"inter_sentence_gate": True, "relation_mask_operation": "multiply"}),
        ("isg_rnnsearch", {}),
        ("car_rnnsearch", {"inter_sentence_gate": True, "smoothing_words": "all"}),
    ],
    ids=str,
)
@torch.no_grad()
def test_each_sentence_is_encoded_by_itself(arch: str, options: dict[str, Any], left_pad: bool) -> None:
    """Every state is that of the sentence alone, with the vector of its distance added."""
    model = make(arch, 3, **options)
    inputs = preceding_inputs(BEFORE, left_pad)
    sources = {"relation_mask": make_side_inputs(BATCH["src_tokens"])["relation_mask"]} if "fra" in arch else {}
    encoded = model.encoder(BATCH["src_tokens"], BATCH["src_lengths"], **inputs, **sources)
    states = encoded["preceding_out"][0] if is_rnnsearch(model) else encoded["preceding_out"][0].transpose(0, 1)
    assert torch.equal(encoded["preceding_padding_mask"][0], inputs["preceding_tokens"].eq(PAD))
    vectors = model.encoder.encoding_parts["preceding"].embedding.weight
    for row, before in enumerate(BEFORE):
        expected = [
            encode_alone(model, sentence) + vectors[distance]
            for distance, sentence in zip(range(len(before), 0, -1), before)
        ]
        found = states[row, inputs["preceding_tokens"][row].ne(PAD)]
        torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("arch", ["isg_transformer", "isg_rnnsearch"])
@torch.no_grad()
def test_one_preceding_sentence_is_the_papers(arch: str) -> None:
    """A model of three has no parameter more but the vectors of the distances, and is that of one where they are zero;
    and of a batch made for a model of three that of one reads the nearest alone."""
    model, model_of_three = make(arch, 1), make(arch, 3)
    distances = "encoder.encoding_parts.preceding.embedding.weight"
    vectors = torch.zeros_like(model_of_three.state_dict()[distances])
    assert not model_of_three.load_state_dict({**model.state_dict(), distances: vectors}).missing_keys
    nearest = preceding_inputs([[row[-1]] for row in BEFORE])
    expected = model(**BATCH, preceding_tokens=nearest["preceding_tokens"])[0]
    torch.testing.assert_close(model_of_three(**BATCH, **nearest)[0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(**BATCH, **preceding_inputs(BEFORE))[0], expected, rtol=0, atol=1e-10)
    other = [[*row[:-1][::-1], row[-1]] for row in BEFORE]
    changed = [[[6, 4, EOS], [9, 9, EOS], BEFORE[0][2]], BEFORE[1], [[4, 4, EOS], BEFORE[2][1]]]
    for before in (other, changed):
        torch.testing.assert_close(model(**BATCH, **preceding_inputs(before))[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("arch", ["isg_transformer", "isg_rnnsearch"])
@torch.no_grad()
def test_each_of_several_sentences_counts_and_so_does_their_order(arch: str) -> None:
    model = make(arch, 3)
    expected = model(**BATCH, **preceding_inputs(BEFORE))[0]
    farthest = [[[4, 5, 6, 17, EOS], *BEFORE[0][1:]], *BEFORE[1:]]
    swapped = [[BEFORE[0][1], BEFORE[0][0], BEFORE[0][2]], *BEFORE[1:]]
    for before in (farthest, swapped):
        difference = (model(**BATCH, **preceding_inputs(before))[0] - expected).abs().amax(dim=(1, 2))
        assert (difference > 1e-4).tolist() == [True, False, False]
    beyond = [[[5, 5, EOS], *BEFORE[0]], *BEFORE[1:]]  # a fourth sentence, for another model of an ensemble
    torch.testing.assert_close(model(**BATCH, **preceding_inputs(beyond))[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("arch", ["isg_transformer", "isg_rnnsearch"])
def test_a_batch_is_its_sentences_one_by_one_and_trains_every_vector(arch: str) -> None:
    model = make(arch, 3)
    logits = model(**BATCH, **preceding_inputs(BEFORE))[0]
    for row, (source, target, before) in enumerate(zip(SOURCES, TARGETS, BEFORE)):
        alone = model(**make_batch([source], [target])["net_input"], **preceding_inputs([before]))[0]
        torch.testing.assert_close(logits[row, : len(target) + 1], alone[0], rtol=0, atol=1e-10)
    logits.square().sum().backward()
    gradient = model.encoder.encoding_parts["preceding"].embedding.weight.grad
    assert gradient.abs().sum(dim=1).ne(0).tolist() == [False, True, True, True]


@pytest.mark.parametrize("arch", ["isg_transformer", "isg_rnnsearch"])
@torch.no_grad()
def test_null_for_all(arch: str) -> None:
    """The ablation gives every source what a document's first sentence has."""
    null = make(arch, 3, inter_sentence_ablation="null")
    expected = make(arch, 3)(**BATCH, **preceding_inputs([[[EOS, EOS, EOS]]] * 3))[0]
    torch.testing.assert_close(null(**BATCH, **preceding_inputs(BEFORE))[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("arch", ["isg_transformer", "isg_rnnsearch"])
def test_no_sentence_is_no_number(arch: str) -> None:
    with pytest.raises(UserError, match="--inter-sentence-context 0: it must be at least 1"):
        make(arch, 0)


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("isg_transformer", {}),
        ("isg_transformer_align", {"alignment_layer": 0, "full_context_alignment": True}),
        ("isg_rnnsearch", {}),
    ],
    ids=str,
)
def test_alignments_of_beams_are_those_of_each_alone(arch: str, options: dict[str, Any]) -> None:
    """``--print-alignment soft``: the attention of every translation when it is given to the model by itself."""
    model = make(arch, 3, **options).eval()
    source = {name: BATCH[name] for name in ("src_tokens", "src_lengths")}
    generator = AlignmentGenerator([model], DICTIONARY, print_alignment="soft", beam_size=2, max_len_b=5)
    found = generator.generate([model], {"net_input": {**source, **preceding_inputs(BEFORE)}})
    for row, hypotheses in enumerate(found):
        words = source["src_tokens"][row : row + 1]
        for hypothesis in hypotheses:
            previous = torch.cat([torch.tensor([EOS]), hypothesis["tokens"][:-1]]).unsqueeze(0)
            attention = model(words, None, previous, **preceding_inputs([BEFORE[row]]))[1]["attn"][0][0]
            printed = torch.tensor([[float(weight) for weight in line] for line in hypothesis["alignment"]])
            torch.testing.assert_close(printed, attention[:, words[0].ne(PAD)], rtol=0, atol=1e-5, check_dtype=False)


def test_alignments_of_an_ensemble_are_the_mean_of_its_models() -> None:
    models = [make("isg_transformer", 3).eval(), make("context_transformer", 1, seed=2).eval()]
    generator = AlignmentGenerator(models, DICTIONARY, print_alignment="soft", beam_size=2, max_len_b=5)
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    source, previous = BATCH["src_tokens"], torch.randint(4, 20, (6, 4))
    generator.model.streams, generator.model.sentences = preceding_inputs(BEFORE), len(source)
    found = generator.model.forward_align(source[rows], BATCH["src_lengths"][rows], previous)
    inputs = preceding_inputs([BEFORE[row] for row in rows])
    attention = [model(source[rows], None, previous, **inputs)[1]["attn"][0] for model in models]
    assert (attention[0] - attention[1]).abs().max() > 1e-3
    torch.testing.assert_close(found, (attention[0] + attention[1]) / 2)


def test_a_batch_that_was_doubled_is_refused() -> None:
    """As fairseq's criterion of R-Drop does with every tensor of a batch."""
    inputs = preceding_inputs(BEFORE)
    doubled = {name: torch.cat([value, value]) for name, value in inputs.items() if isinstance(value, Tensor)}
    sources = torch.cat([BATCH["src_tokens"], BATCH["src_tokens"]])
    with pytest.raises(UserError, match="cannot be combined with what changes the rows of a batch, such as"):
        make("isg_transformer", 2).encoder(sources, None, **{**inputs, **doubled})

"""The search that the task builds finds what fairseq's finds, with less work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import pytest
import torch
from fairseq.data import data_utils
from fairseq.search import DiverseBeamSearch, Sampling
from fairseq.sequence_generator import SequenceGenerator

from fairseq_ctxgates.tasks.beam_search import WordsFirstBeamSearch
from fairseq_ctxgates.tasks.continuing_generator import CONTEXT, ContinuingGenerator
from tests.helpers.models import DICTIONARY, EOS, PAD, make_decoding_batch, make_model, make_side_inputs
from tests.helpers.reference_rnnsearch import make_rnnsearch
from tests.helpers.reference_search import beam_search

pytestmark = pytest.mark.usefixtures("float64", "no_grad")

BATCH = make_decoding_batch()
SOURCE = BATCH["net_input"]["src_tokens"]
INPUT = {"src_tokens": SOURCE, "src_lengths": BATCH["net_input"]["src_lengths"], **make_side_inputs(SOURCE)}

SMOOTHED: dict[str, Any] = {"smoothing": "ccwm", "smoothing_side": "both", "smoothing_words": "all"}
ALL: dict[str, Any] = {"inter_sentence_gate": True, "relation_fusion": "transform", **SMOOTHED}
MODELS: dict[str, Callable[[], list[Any]]] = {
    "plain": lambda: [make_model("context_transformer")],
    "all mechanisms": lambda: [make_model("rcg_transformer", **ALL)],
    "random context": lambda: [make_model("isg_transformer", inter_sentence_ablation="random")],
    "RNNSearch": lambda: [make_rnnsearch(context_gate="both", inter_sentence_gate=True, **SMOOTHED)],
    "both backbones": lambda: [make_model("rcg_transformer"), make_rnnsearch(inter_sentence_gate=True)],
    "with fairseq's": lambda: [make_model("rcg_transformer"), make_model("transformer", seed=2, from_checkpoint=True)],
}
SEARCHES: dict[str, dict[str, Any]] = {
    "one beam": {"beam_size": 1},
    "beams": {"beam_size": 3},
    "lengths": {"beam_size": 2, "min_len": 2, "max_len_b": 3},
    "one step": {"beam_size": 2, "min_len": 0, "max_len_b": 0},
    "diverse": {"beam_size": 4, "search_strategy": DiverseBeamSearch(DICTIONARY, 2, 0.5)},
    "sampling": {"beam_size": 2, "search_strategy": Sampling(DICTIONARY), "max_len_b": 8, "min_len": 0},
}


def translate(generator: Any, **options: Any) -> Any:
    torch.manual_seed(1)  # for sampling
    return generator.generate(generator.model.models, {"net_input": dict(INPUT)}, **options)


def make_generators(models: str, search: str) -> list[Any]:
    """fairseq's generator and ours, of models in which some sentences end before others."""
    made = MODELS[models]()
    options = {"max_len_b": 6, **SEARCHES[search]}
    return [generator(made, DICTIONARY, **options) for generator in (SequenceGenerator, ContinuingGenerator)]


def check_translations(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for found_beams, expected_beams in zip(found, expected):
        assert len(found_beams) == len(expected_beams)
        for hypothesis, other in zip(found_beams, expected_beams):
            for name in ("tokens", "score", "positional_scores", "attention"):
                torch.testing.assert_close(hypothesis[name], other[name])


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("models", MODELS)
def test_translations_are_those_of_fairseqs_search(models: str, search: str) -> None:
    stock, ours = make_generators(models, search)
    for _ in range(2):  # nothing is left of a batch when the next one begins
        check_translations(translate(ours), translate(stock))


@pytest.mark.parametrize("models", MODELS)
def test_translations_after_prefixes_are_those_of_fairseqs_search(models: str) -> None:
    """``fairseq-generate --prefix-size 2``, with prefixes of two words, of one, and of none."""
    prefixes = torch.tensor([[9, 12], [7, DICTIONARY.pad()], [DICTIONARY.pad()] * 2])
    stock, ours = make_generators(models, "beams")
    check_translations(translate(ours, prefix_tokens=prefixes), translate(stock, prefix_tokens=prefixes))


def test_sentences_that_end_at_the_first_step() -> None:
    """Where all that is drawn for a sentence is its end, the sentence is finished before its beams have had a step."""
    stock, ours = make_generators("all mechanisms", "sampling")
    weights = ours.model.models[0].decoder.output_projection.weight
    weights[EOS] *= 12
    expected = translate(stock)
    assert 0 < sum(all(len(beam["tokens"]) == 1 for beam in beams) for beams in expected) < len(SOURCE)
    check_translations(translate(ours), expected)


@pytest.mark.parametrize("models", MODELS)
def test_the_first_step_has_a_row_for_each_sentence(models: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = make_generators(models, "beams")
    decoder = ours.model.models[0].decoder
    forward = decoder.forward
    rows: list[int] = []

    def counting(tokens: Any, **given: Any) -> Any:
        rows.append(len(tokens))
        return forward(tokens, **given)

    monkeypatch.setattr(decoder, "forward", counting)
    first = 3 * len(SOURCE) if models == "with fairseq's" else len(SOURCE)
    for _ in range(2):
        rows.clear()
        translate(ours)
        assert rows[:2] == [first, 3 * len(SOURCE)]


@pytest.mark.parametrize("search", SEARCHES)
def test_only_fairseqs_plain_beam_search_is_replaced(search: str) -> None:
    _, ours = make_generators("plain", search)
    is_plain = "search_strategy" not in SEARCHES[search]
    assert (type(ours.search) is WordsFirstBeamSearch) == is_plain


def test_the_number_of_beams_is_that_of_the_search() -> None:
    stock, ours = make_generators("all mechanisms", "beams")
    for generator in (stock, ours):
        generator.beam_size = 2
    check_translations(translate(ours), translate(stock))


@pytest.mark.slow
def test_one_generator_in_several_threads() -> None:
    _, ours = make_generators("all mechanisms", "beams")
    inputs = [{"net_input": {name: value[row : row + 2] for name, value in INPUT.items()}} for row in (0, 1)] * 8

    def search(sample: Any) -> Any:
        with torch.no_grad():  # which each thread has of its own
            return ours.generate(ours.model.models, sample)

    expected = list(map(search, inputs))
    with ThreadPoolExecutor(2) as pool:
        for found, other in zip(pool.map(search, inputs), expected):
            check_translations(found, other)


# --- translations that continue a text

CONTEXTS = [[8, 9, EOS], [10, EOS, 11, EOS], []]


def continue_texts(generator: ContinuingGenerator) -> Any:
    """The translations of one source after each of the contexts."""
    source = torch.tensor([[5, 6, 7, EOS]]).repeat(len(CONTEXTS), 1)
    batch: dict[str, Any] = {"net_input": {"src_tokens": source, "src_lengths": torch.full((len(CONTEXTS),), 4)}}
    batch[CONTEXT] = data_utils.collate_tokens([torch.tensor(row, dtype=torch.long) for row in CONTEXTS], PAD)
    return generator.generate(generator.model.models, batch)


@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
def test_translations_after_a_text_are_in_the_order_of_their_own_scores(penalty: float) -> None:
    """The length penalty is that of the translation alone."""
    model = make_model("context_transformer", seed=5)
    model.decoder.output_projection.weight[EOS] *= 6  # for translations of several lengths
    options = {"beam_size": 4, "max_len_b": 4, "min_len": 0, "len_penalty": penalty}
    for found, context in zip(continue_texts(ContinuingGenerator([model], DICTIONARY, **options)), CONTEXTS):
        assert len({len(hypothesis["tokens"]) for hypothesis in found}) > 1
        expected = beam_search(model, torch.tensor([5, 6, 7, EOS]), context, 4, longest=4, shortest=0, penalty=penalty)
        assert [hypothesis["tokens"].tolist() for hypothesis in found] == [one.tokens for one in expected]
        assert [float(hypothesis["score"]) for hypothesis in found] == pytest.approx([one.score for one in expected])


def test_suppressed_words_are_not_in_translations_after_a_text() -> None:
    """fairseq's option ``tokens_to_suppress``; the text before a translation may have these words."""
    generator = ContinuingGenerator([make_model("context_transformer")], DICTIONARY, beam_size=4, max_len_b=4)

    def words() -> set[int]:
        return {token for found in continue_texts(generator) for one in found for token in one["tokens"].tolist()}

    suppressed = (words() - {EOS}) | {8}
    generator.token_indices_to_suppress = torch.tensor(sorted(suppressed))
    assert EOS in words() and not words() & suppressed

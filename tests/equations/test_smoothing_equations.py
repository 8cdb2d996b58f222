"""Context-aware smoothing (CAR): the networks FCWM and CCWM of Chen et al. 2017; docs/decisions.md."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import pytest
import torch
from fairseq.data import data_utils
from fairseq.dataclass.utils import gen_parser_from_dataclass
from torch import Tensor, nn

from fairseq_ctxgates.configuration import options_from
from fairseq_ctxgates.data.data_directory import Split, find_splits
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.parts import embed_words
from fairseq_ctxgates.smoothing.context_aware_smoothing import ContextAwareSmoothing
from fairseq_ctxgates.smoothing.mechanism import EmbeddingSmoothing, SmoothingConfig
from tests.helpers.corpus import binarize
from tests.helpers.models import DICTIONARY, EOS, PAD, multiplies_float16

UNK = DICTIONARY.unk()
DIM = 3
# Unknown words at both ends, next to each other and alone; sentences shorter than the window; none unknown.
SENTENCES = [
    [UNK, 5, 6, UNK, UNK, UNK, 7, 8, 9, 10, UNK, EOS],
    [UNK, EOS],
    [11, UNK, 12, 13, EOS],
    [14, 15, 16, 17, 18, 19, EOS],
    [UNK, UNK, UNK],
]
NETWORKS: list[dict[str, Any]] = [
    # number of L on the encoder's side, and on the decoder's
    {"smoothing": "fcwm", "smoothing_window": 1},
    {"smoothing": "fcwm", "smoothing_window": 4},
    {"smoothing": "ccwm", "smoothing_window": 4, "smoothing_width": 3},  # 6, 2
    {"smoothing": "ccwm", "smoothing_window": 4, "smoothing_width": 2},  # 7, 3
    {"smoothing": "ccwm", "smoothing_window": 4, "smoothing_width": 4},  # 5, 1
    {"smoothing": "ccwm", "smoothing_window": 3, "smoothing_width": 1},  # 6, 3
]
WORDS: list[dict[str, Any]] = [
    {"smoothing_words": "unknown"},
    {"smoothing_words": "unknown", "smoothing_combine": "add"},
    {"smoothing_words": "all"},
    {"smoothing_words": "all", "smoothing_combine": "replace"},
]
SIDES = ["encoder", "decoder"]


def make_smoothing(side: str, dim: int = DIM, embed_scale: float = 1.0, **options: Any) -> ContextAwareSmoothing:
    """A smoothing module with random parameters, in float64."""
    config = SmoothingConfig(**{"smoothing_side": "both", **options})
    smoothing = EmbeddingSmoothing(config, 1).embedding_part(side, dim, DICTIONARY, embed_scale)
    assert smoothing is not None
    generator = torch.Generator().manual_seed(3)
    for parameter in smoothing.double().parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5
    return smoothing


def make_embedding(dim: int = DIM) -> nn.Embedding:
    """The symbol for padding has an embedding too, so that what reads it is seen."""
    generator = torch.Generator().manual_seed(4)
    return nn.Embedding.from_pretrained(
        torch.randn(len(DICTIONARY), dim, generator=generator, dtype=torch.float64), padding_idx=PAD
    )


EMBEDDING = make_embedding()


def collate(sentences: Sequence[Sequence[int]], left_pad: bool = False) -> Tensor:
    return data_utils.collate_tokens([torch.tensor(sentence) for sentence in sentences], PAD, left_pad=left_pad)


def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=0, atol=1e-12)


# --- reference implementation in NumPy --------------------------------------------------------------------------------

PHI: dict[str, Any] = {"tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0)}


class ReferenceSmoothing:
    """The slides' equations for one sentence and one word after the other, with the parameters of a module."""

    def __init__(self, smoothing: ContextAwareSmoothing, side: str, options: dict[str, Any]) -> None:
        self.options = {"smoothing_activation": "tanh", "smoothing_width": 3, **options}
        self.parameters = {name: value.numpy() for name, value in smoothing.network.state_dict().items()}
        self.phi = PHI[self.options["smoothing_activation"]]
        self.before = self.options["smoothing_window"]
        self.after = self.before if side == "encoder" else 0

    def window(self, v: np.ndarray, j: int) -> list[np.ndarray]:
        """v_{j-n} ... v_{j-1} v_{j+1} ... v_{j+n}, zero beyond the sentence's ends."""
        positions = [*range(j - self.before, j), *range(j + 1, j + 1 + self.after)]
        return [v[i] if 0 <= i < len(v) else np.zeros(v.shape[1]) for i in positions]

    def fcwm(self, window: list[np.ndarray]) -> np.ndarray:
        parts = [self.parameters["history.weight"], *([self.parameters["future.weight"]] if self.after else [])]
        # A kernel is (output, input, word); W_1 reads the concatenation of the words, one after the other.
        w1 = np.concatenate([part[:, :, word] for part in parts for word in range(part.shape[2])], axis=1)
        return self.phi(w1 @ np.concatenate(window) + self.parameters["history.bias"])

    def ccwm(self, window: list[np.ndarray]) -> np.ndarray:
        k = self.options["smoothing_width"]
        kernel = self.parameters["convolution.weight"]
        w2 = np.concatenate([kernel[:, :, word] for word in range(k)], axis=1)
        number = len(window) - k + 1
        features = [
            self.phi(w2 @ np.concatenate(window[first : first + k]) + self.parameters["convolution.bias"])
            for first in range(number)
        ]
        maxima = []
        for first in range(0, number, 2):
            maxima.append(np.max(features[first : first + 2], axis=0))
        average = np.mean(maxima, axis=0)
        return self.phi(self.parameters["output.weight"][:, :, 0] @ average + self.parameters["output.bias"])

    def sentence(self, tokens: Sequence[int]) -> np.ndarray:
        """The smoothed embeddings, (length, dim)."""
        v = EMBEDDING.weight.numpy()[list(tokens)]
        is_all = self.options["smoothing_words"] == "all"
        adds = self.options.get("smoothing_combine", "add" if is_all else "replace") == "add"
        smoothed = v.copy()
        for j, token in enumerate(tokens):
            if is_all or token == UNK:
                vector = getattr(self, self.options["smoothing"])(self.window(v, j))
                smoothed[j] = v[j] + vector if adds else vector
        return smoothed


@pytest.mark.parametrize("left_pad", [True, False])
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("side", SIDES)
@torch.no_grad()
def test_smoothing_computes_what_the_slides_say(
    side: str, network: dict[str, Any], words: dict[str, Any], left_pad: bool
) -> None:
    """Padding changes nothing, on either side."""
    options = {**network, **words}
    smoothing = make_smoothing(side, **options)
    reference = ReferenceSmoothing(smoothing, side, options)
    tokens = collate(SENTENCES, left_pad)
    smoothed = embed_words(EMBEDDING, tokens, [smoothing])
    assert smoothed.shape == (*tokens.shape, DIM) and smoothed.dtype == torch.float64
    for row, sentence in enumerate(SENTENCES):
        assert_close(smoothed[row, tokens[row].ne(PAD)], reference.sentence(sentence))
    assert torch.equal(smoothed[tokens.eq(PAD)], EMBEDDING(tokens)[tokens.eq(PAD)])


@pytest.mark.parametrize("activation", PHI)
@pytest.mark.parametrize("kind", ["fcwm", "ccwm"])
@torch.no_grad()
def test_smoothing_with_each_activation_computes_what_the_slides_say(kind: str, activation: str) -> None:
    options: dict[str, Any] = {
        "smoothing": kind,
        "smoothing_window": 2,
        "smoothing_words": "all",
        "smoothing_combine": "replace",
        "smoothing_activation": activation,
    }
    smoothing = make_smoothing("encoder", **options)
    expected = ReferenceSmoothing(smoothing, "encoder", options).sentence(SENTENCES[0])
    assert_close(embed_words(EMBEDDING, collate(SENTENCES[:1]), [smoothing])[0], expected)


# --- by hand ----------------------------------------------------------------------------------------------------------
# Embeddings of one component, a word's number as written below; relu leaves what is positive as it is.


def by_hand(side: str, kind: str, words: str = "all", **parameters: Any) -> ContextAwareSmoothing:
    options: dict[str, Any] = {"smoothing_window": 2, "smoothing_activation": "relu", "smoothing_combine": "replace"}
    if "convolution_weight" in parameters:
        options["smoothing_width"] = len(parameters["convolution_weight"])
    smoothing = make_smoothing(side, dim=1, smoothing=kind, smoothing_words=words, **options)
    for parameter in smoothing.parameters():
        parameter.data.zero_()
    for name, values in parameters.items():
        part, kind = name.rsplit("_", 1)
        parameter = getattr(getattr(smoothing.network, part), kind)
        parameter.data = torch.tensor(values, dtype=torch.float64).view_as(parameter)
    return smoothing


def smooth(smoothing: ContextAwareSmoothing, numbers: Sequence[int], unknown: Sequence[int] = ()) -> list[float]:
    """The smoothed embeddings of a sentence, whose words have these embeddings and are unknown at these positions."""
    tokens = torch.tensor([[UNK if position in unknown else 5 for position in range(len(numbers))]])
    embeddings = torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1)
    return smoothing(embeddings, tokens, tokens.size(1)).flatten().tolist()


@torch.no_grad()
def test_fcwm_by_hand() -> None:
    """W_1 = [1000 100 10 1] writes the window down as a number: nothing stands beyond the ends, and the word itself is
    not in it."""
    smoothing = by_hand("encoder", "fcwm", history_weight=[1000, 100], future_weight=[10, 1])
    assert smooth(smoothing, [1, 2, 3, 4, 5]) == [23, 134, 1245, 2350, 3400]
    assert smooth(smoothing, [7]) == [0]
    only_history = by_hand("decoder", "fcwm", history_weight=[10, 1], history_bias=[0.5])
    assert smooth(only_history, [1, 2, 3, 4, 5]) == [0.5, 1.5, 12.5, 23.5, 34.5]


@torch.no_grad()
def test_unknown_neighbours_by_hand() -> None:
    """Two unknown words side by side, each with the embedding 9 of <unk> in the other's window."""
    smoothing = by_hand("encoder", "fcwm", "unknown", history_weight=[1000, 100], future_weight=[10, 1])
    assert smooth(smoothing, [1, 9, 9, 4], unknown=[1, 2]) == [1, 194, 1940, 4]


@pytest.mark.parametrize(
    ("kernel", "numbers", "expected"),
    [
        # Of the middle word of five, W_3 = 2 and b_3 = 1.
        # Two L: max(124, 245) = 245, alone; 2 · 245 + 1 = 491
        ([100, 10, 1], [1, 2, 3, 4, 5], 491),
        # Three L: max(12, 24) = 24 and 45 alone; their mean is 34.5; 2 · 34.5 + 1 = 70
        ([10, 1], [1, 2, 3, 4, 5], 70),
        # Three L: max(83, 31) = 83 and 16 alone; mean 49.5; 2 · 49.5 + 1 = 100
        ([10, 1], [8, 3, 9, 1, 6], 100),
        # Four L: max(8, 3) = 8 and max(1, 6) = 6; mean 7; 2 · 7 + 1 = 15
        ([1], [8, 3, 9, 1, 6], 15),
        # One L: 8316; 2 · 8316 + 1 = 16633
        ([1000, 100, 10, 1], [8, 3, 9, 1, 6], 16633),
    ],
)
@torch.no_grad()
def test_ccwm_by_hand(kernel: list[int], numbers: list[int], expected: float) -> None:
    smoothing = by_hand("encoder", "ccwm", convolution_weight=kernel, output_weight=[2], output_bias=[1])
    assert smooth(smoothing, numbers)[2] == expected


# --- what is left alone, and what is not seen -------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("side", SIDES)
@torch.no_grad()
def test_unknown_leaves_known_words_exactly_as_they_are(side: str, network: dict[str, Any]) -> None:
    smoothing = make_smoothing(side, smoothing_words="unknown", embed_scale=1.7, **network)
    tokens = collate(SENTENCES, left_pad=True)
    embeddings = EMBEDDING(tokens)
    smoothed = smoothing(embeddings, tokens, tokens.size(1))
    assert torch.equal(smoothed[tokens.ne(UNK)], embeddings[tokens.ne(UNK)])
    assert (smoothed != embeddings)[tokens.eq(UNK)].all()
    without_unknown = tokens[3:4]
    assert torch.equal(smoothing(embeddings[3:4], without_unknown, without_unknown.size(1)), embeddings[3:4])


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("network", NETWORKS)
@torch.no_grad()
def test_decoder_does_not_look_ahead(network: dict[str, Any], words: dict[str, Any]) -> None:
    """Changing a word changes no earlier output, but later ones; on the encoder's side it does change earlier ones."""
    tokens = torch.tensor([[EOS, 5, UNK, UNK, 6, 7, UNK, 8], [EOS, UNK, UNK, UNK, 6, UNK, UNK, UNK]])
    for side in SIDES:
        smoothing = make_smoothing(side, **network, **words)
        before = embed_words(EMBEDDING, tokens, [smoothing])
        changed = tokens.clone()
        changed[:, 4] = 9
        after = embed_words(EMBEDDING, changed, [smoothing])
        assert torch.equal(before[:, :4], after[:, :4]) == (side == "decoder")
        assert side == "encoder" or (before != after)[:, 5:].any()


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("network", NETWORKS)
@torch.no_grad()
def test_last_word_alone_equals_all_words(network: dict[str, Any], words: dict[str, Any]) -> None:
    """Incremental decoding asks for the last word of each prefix; here of three beams."""
    smoothing = make_smoothing("decoder", **network, **words)
    tokens = torch.tensor([[EOS, 5, UNK, UNK, 6, 7, UNK], [EOS, UNK, 8, 9, 4, UNK, 10], [EOS, 11, 12, 13, 14, 15, 16]])
    expected = embed_words(EMBEDDING, tokens, [smoothing])
    for length in range(1, tokens.size(1) + 1):
        prefix = tokens[:, :length]
        last = embed_words(EMBEDDING, prefix, [smoothing], last_only=True)
        assert last.shape == (3, 1, DIM)
        assert_close(last[:, 0], expected[:, length - 1])
        # Also where the embeddings of the whole prefix are given.
        assert_close(smoothing(EMBEDDING(prefix), prefix, 1), last)


@torch.no_grad()
def test_last_word_of_two_parts_in_turn() -> None:
    """The second reads the words before as the first has changed them."""
    first = make_smoothing("decoder", smoothing="fcwm", smoothing_window=2, smoothing_words="all")
    second = make_smoothing("decoder", smoothing="ccwm", smoothing_window=3, smoothing_words="all")
    tokens = torch.tensor([[EOS, 5, UNK, UNK, 6, 7, UNK, 8], [EOS, UNK, 8, 9, 4, UNK, 10, 11]])
    expected = embed_words(EMBEDDING, tokens, [first, second])
    for length in range(1, tokens.size(1) + 1):
        last = embed_words(EMBEDDING, tokens[:, :length], [first, second], last_only=True)
        assert_close(last[:, 0], expected[:, length - 1])


@torch.no_grad()
def test_words_are_embedded_without_smoothing() -> None:
    tokens = collate(SENTENCES)
    assert torch.equal(embed_words(EMBEDDING, tokens, []), EMBEDDING(tokens))
    assert torch.equal(embed_words(EMBEDDING, tokens, [], last_only=True), EMBEDDING(tokens[:, -1:]))


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("network", [NETWORKS[1], NETWORKS[2]])
@torch.no_grad()
def test_model_that_scales_its_embeddings(network: dict[str, Any], words: dict[str, Any]) -> None:
    """Smoothing before the model multiplies its embeddings equals smoothing after it."""
    tokens = collate(SENTENCES)
    scaled = make_smoothing("encoder", embed_scale=8.0, **network, **words)
    plain = make_smoothing("encoder", **network, **words)
    assert_close(
        8 * scaled(EMBEDDING(tokens), tokens, tokens.size(1)), plain(8 * EMBEDDING(tokens), tokens, tokens.size(1))
    )


# --- gradients and types ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("network", [NETWORKS[1], NETWORKS[2], NETWORKS[3]])
@pytest.mark.parametrize("side", SIDES)
def test_gradients_are_those_of_finite_differences(side: str, network: dict[str, Any], words: dict[str, Any]) -> None:
    smoothing = make_smoothing(side, dim=2, **network, **words)
    tokens = collate([[UNK, 5, UNK, UNK, 6], [7, UNK, 8]], left_pad=True)
    embeddings = make_embedding(2)(tokens).requires_grad_()
    parameters = list(smoothing.parameters())

    def function(embeddings: Tensor, *_: Tensor) -> Tensor:
        return smoothing(embeddings, tokens, tokens.size(1))

    assert torch.autograd.gradcheck(function, (embeddings, *parameters))
    function(embeddings).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in parameters)


@pytest.mark.parametrize("network", [NETWORKS[1], NETWORKS[2]])
@pytest.mark.parametrize("side", SIDES)
def test_gradients_are_zero_where_no_word_is_unknown(side: str, network: dict[str, Any]) -> None:
    """Distributed training waits for the gradient of every parameter on every machine."""
    smoothing = make_smoothing(side, smoothing_words="unknown", **network)
    tokens = collate(SENTENCES[3:4])
    smoothing(EMBEDDING(tokens), tokens, tokens.size(1)).sum().backward()
    for parameter in smoothing.parameters():
        assert parameter.grad is not None and torch.count_nonzero(parameter.grad) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=multiplies_float16)])
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("network", [NETWORKS[1], NETWORKS[2]])
@torch.no_grad()
def test_half_precision(network: dict[str, Any], words: dict[str, Any], dtype: torch.dtype) -> None:
    tokens = collate(SENTENCES)
    smoothing = make_smoothing("encoder", **network, **words)
    expected = smoothing(EMBEDDING(tokens), tokens, tokens.size(1))
    smoothed = smoothing.to(dtype)(EMBEDDING(tokens).to(dtype), tokens, tokens.size(1))
    assert smoothed.dtype == dtype
    torch.testing.assert_close(smoothed.double(), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("words", WORDS)
def test_autocast_keeps_the_type_of_the_embeddings(words: dict[str, Any]) -> None:
    """``--amp`` runs the module under autocast."""
    smoothing = make_smoothing("encoder", smoothing="ccwm", **words).float()
    tokens = collate(SENTENCES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert smoothing(EMBEDDING(tokens).float(), tokens, tokens.size(1)).dtype == torch.float32


# --- options ----------------------------------------------------------------------------------------------------------


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    gen_parser_from_dataclass(parser, SmoothingConfig())
    return parser.parse_args(arguments)


def build(side: str, *arguments: str) -> ContextAwareSmoothing | None:
    mechanism = EmbeddingSmoothing(options_from(SmoothingConfig, parse(*arguments)), 1)
    return mechanism.embedding_part(side, DIM, DICTIONARY, 1.0) if mechanism.is_on else None


@pytest.mark.parametrize("side", ["encoder", "decoder", "both"])
def test_data_without_unknown_words(side: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As text in subwords is: a warning says that the network does not learn."""
    data = binarize(tmp_path, {"train": [("a b", "x y"), ("a", "y z")], "valid": [("a c", "w")]}, "de", "en")
    train, valid = find_splits(data, "de", "en")

    def warnings(split: Split, **options: Any) -> list[str]:
        caplog.clear()
        config = SmoothingConfig(smoothing="fcwm", smoothing_side=side, **options)
        EmbeddingSmoothing(config, 2).check_training_data([split])
        return re.findall(r"of the (\d+ \w+) words of the training data 0 are unknown", caplog.text)

    both = {"encoder": "3 source", "decoder": "4 target"}
    assert warnings(train) == (list(both.values()) if side == "both" else [both[side]])
    assert warnings(train, smoothing_words="all") == []
    assert warnings(valid) == [], "words of the training text alone are known"


def test_no_smoothing_by_default() -> None:
    assert build("encoder") is None and build("decoder") is None


@pytest.mark.parametrize(
    ("arguments", "sides"),
    [
        ([], ["encoder"]),
        (["--smoothing-side", "encoder"], ["encoder"]),
        (["--smoothing-side", "decoder"], ["decoder"]),
        (["--smoothing-side", "both"], ["encoder", "decoder"]),
    ],
)
def test_the_side_asked_for_is_smoothed_and_by_default_the_encoder(arguments: list[str], sides: list[str]) -> None:
    assert [side for side in SIDES if build(side, "--smoothing", "fcwm", *arguments) is not None] == sides


@pytest.mark.parametrize("combine", [None, "replace", "add"])
@pytest.mark.parametrize(("words", "default"), [("unknown", "replace"), ("all", "add")])
def test_combine_is_by_words_unless_given(words: str, default: str, combine: str | None) -> None:
    arguments = ["--smoothing-combine", combine] if combine else []
    smoothing = build("encoder", "--smoothing", "fcwm", "--smoothing-words", words, *arguments)
    assert smoothing is not None and smoothing.add == ((combine or default) == "add")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("window", [1, 4])
def test_matrices_have_the_sizes_of_the_slides(window: int, side: str) -> None:
    """W_1 is d × 2nd, W_2 d × kd, W_3 d × d, with a bias each; on the decoder's side W_1 is d × nd."""

    def count(*arguments: str) -> int:
        smoothing = build(side, "--smoothing-side", "both", "--smoothing-window", str(window), *arguments)
        assert smoothing is not None
        return sum(parameter.numel() for parameter in smoothing.parameters())

    words = window * (2 if side == "encoder" else 1)
    assert count("--smoothing", "fcwm") == DIM * words * DIM + DIM
    assert count("--smoothing", "ccwm", "--smoothing-width", "1") == 2 * (DIM * DIM + DIM)
    assert count("--smoothing", "ccwm", "--smoothing-width", str(words)) == DIM * words * DIM + DIM * DIM + 2 * DIM


@pytest.mark.parametrize(
    ("side", "arguments", "message"),
    [
        ("encoder", ["--smoothing", "fcwm", "--smoothing-window", "0"], "--smoothing-window 0: give at least one"),
        ("encoder", ["--smoothing", "ccwm", "--smoothing-width", "9"], "--smoothing-width 9: .* 1 to 8 words"),
        ("decoder", ["--smoothing", "ccwm", "--smoothing-width", "5"], "--smoothing-width 5: .* 1 to 4 words"),
        ("encoder", ["--smoothing", "ccwm", "--smoothing-width", "0"], "--smoothing-width 0: .* 1 to 8 words"),
    ],
)
def test_sizes_that_cannot_be(side: str, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(side, "--smoothing-side", "both", *arguments)


@pytest.mark.parametrize("kind", ["fcwm", "ccwm"])
def test_initial_vectors_are_of_the_size_of_the_embeddings(kind: str) -> None:
    """For embeddings of variance one, the new vectors are neither tiny nor saturated."""
    torch.manual_seed(1)
    options = SmoothingConfig(smoothing=kind, smoothing_words="all", smoothing_combine="replace")
    smoothing = EmbeddingSmoothing(options, 1).embedding_part("encoder", 64, DICTIONARY, 1.0)
    assert smoothing is not None
    with torch.no_grad():
        vectors = smoothing(torch.randn(20, 30, 64), torch.full((20, 30), 5), 30)
    assert 0.3 < vectors.std() < 0.8 and abs(vectors.mean()) < 0.1

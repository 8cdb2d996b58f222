"""Reference implementation of the Transformer with its mechanisms, from the papers, in NumPy: the decoder, and the
encoder under a relation mask."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from tests.helpers.models import PAD, TINY

Array = np.ndarray


class Sentence(NamedTuple):
    """An encoded sentence, (batch, length, width), where its words are, (batch, 1, length), and its relation encoding,
    of the shape of the first."""

    states: Array
    is_word: Array
    relations: Array | None = None


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class ReferenceTransformer:
    """The decoder, or the encoder, with the parameters of a model. Arrays are (batch, length, width).

    Args:
        model: whose parameters are read
        order: of normalization: post, pre or inner
        activation: of the feed-forward networks
        side: decoder or encoder
        fusion: how relations are fused, and in which layers, from 1
        relation_lambda: of the fusion ``linear``
    """

    def __init__(
        self,
        model: Any,
        order: str = "post",
        activation: Callable = lambda x: np.maximum(x, 0),
        side: str = "decoder",
        fusion: tuple[str, Sequence[int]] = ("none", ()),
        relation_lambda: float = 0.4,
    ) -> None:
        module = getattr(model, side)
        self.parameters = {name: value.numpy() for name, value in module.state_dict().items()}
        self.layers = len(module.layers)
        self.fusion, self.fused_layers = fusion
        self.relation_lambda = relation_lambda
        self.order = order
        self.activation = activation
        self.attention_weights: dict[str, Array] = {}  # of each attention: (heads, batch, query length, memory length)

    def has(self, name: str) -> bool:
        return any(parameter.startswith(f"{name}.") for parameter in self.parameters)

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.parameters[f"{name}.weight"].T + self.parameters.get(f"{name}.bias", 0)

    def norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return centred / deviation * self.parameters[f"{name}.weight"] + self.parameters[f"{name}.bias"]

    def feed_forward(self, name: str, x: Array) -> Array:
        return self.linear(f"{name}fc2", self.activation(self.linear(f"{name}fc1", x)))

    def attention(self, name: str, query: Array, memory: Array, visible: Array, factors: Array | float = 1) -> Array:
        """``visible`` is (batch or 1, query length or 1, memory length), and so are ``factors``, of the scores."""
        queries, keys, values = (
            self.linear(f"{name}.{part}_proj", x) for part, x in (("q", query), ("k", memory), ("v", memory))
        )
        width = queries.shape[-1] // TINY["decoder_attention_heads"]
        heads, attention_weights = [], []
        for start in range(0, queries.shape[-1], width):
            part = slice(start, start + width)
            scores = queries[..., part] @ keys[..., part].transpose(0, 2, 1) / math.sqrt(width)
            weights = np.exp(scores * factors) * visible
            attention_weights.append(weights / weights.sum(axis=-1, keepdims=True))
            heads.append(attention_weights[-1] @ values[..., part])
        self.attention_weights[name] = np.stack(attention_weights)
        return self.linear(f"{name}.out_proj", np.concatenate(heads, axis=-1))

    def source_context(self, name: str, t: Array, sentence: Sentence, preceding: Sentence | None) -> tuple:
        """Attention over the sentence; with an inter-sentence gate (Kuang and Xiong 2018, equations 9 and 10) mixed
        with that over the preceding sentence, and the gate."""
        c_b = self.attention(f"{name}.encoder_attn", t, sentence.states, sentence.is_word)
        if int(name.split(".")[1]) + 1 in self.fused_layers:
            assert sentence.relations is not None
            own = f"{name}.source_parts.relations.attention"
            attention = own if self.has(own) else f"{name}.encoder_attn"
            c_b = self.fused(name, c_b, self.attention(attention, t, sentence.relations, sentence.is_word))
        gate = f"{name}.source_parts.inter_sentence.gate"
        if not self.has(gate):
            return c_b, None
        assert preceding is not None
        c_a = self.attention(f"{name}.source_parts.inter_sentence.attention", t, preceding.states, preceding.is_word)
        z = sigmoid(
            self.linear(f"{gate}.from_state", t)
            + self.linear(f"{gate}.from_sentence", c_b)
            + self.linear(f"{gate}.from_preceding", c_a)
        )
        mixed = self.linear(f"{gate}.preceding_proj", c_a) * z + self.linear(f"{gate}.sentence_proj", c_b) * (1 - z)
        return mixed, z

    def fused(self, name: str, s_hat: Array, s_tilde: Array) -> Array:
        """H of Li, Zhu et al. 2022, equations 12 to 18."""
        fusion = f"{name}.source_parts.relations.fusion"
        if self.fusion == "linear":  # equation 12
            return s_hat + self.relation_lambda * s_tilde
        both = np.concatenate([s_hat, s_tilde], axis=-1)
        if self.fusion == "gate":  # equations 13 and 14
            g = sigmoid(self.linear(f"{fusion}.gate", both))
            return g * s_hat + (1 - g) * s_tilde
        if self.fusion == "concat-gate":  # equations 15 to 17
            f = sigmoid(self.linear(f"{fusion}.gate", both))
            o = self.linear(f"{fusion}.transform", both)
            return o * f + (both @ self.parameters[f"{fusion}.gate.weight"].T) * (1 - f)
        assert self.fusion == "transform"  # equation 18
        return self.linear(f"{fusion}.transform", both)

    def connect(self, name: str, t: Array, gate_input: Array, source: Array) -> tuple:
        """The residual connection, or the context gate (Li et al. 2020, equations 3 and 4): u and z."""
        if not self.has(f"{name}.connection"):
            return (self.add(f"{name}.encoder_attn", t, source), None)
        s = source if self.order == "pre" else self.norm(f"{name}.encoder_attn_layer_norm", source)
        z = sigmoid(self.feed_forward(f"{name}.connection.", np.concatenate([gate_input, s], axis=-1)))
        return (1 - z) * t + z * s, z

    def input(self, name: str, x: Array) -> Array:
        """The input of a sublayer."""
        return self.norm(f"{name}_layer_norm", x) if self.order == "pre" else x

    def add(self, name: str, x: Array, branch: Array) -> Array:
        """A sublayer's input plus its output, normalized in the layer's order."""
        if self.order == "post":
            return self.norm(f"{name}_layer_norm", x + branch)
        return x + (branch if self.order == "pre" else self.norm(f"{name}_layer_norm", branch))

    def layer(self, number: int, c: Array, sentence: Sentence, preceding: Sentence | None) -> tuple:
        """c' of the layer, its context gate and its inter-sentence gate, None where it has none."""
        name = f"layers.{number - 1}"
        past = np.tril(np.ones((1, c.shape[1], c.shape[1])))
        query = self.input(f"{name}.self_attn", c)
        t = self.add(f"{name}.self_attn", c, self.attention(f"{name}.self_attn", query, query, past))
        query = self.input(f"{name}.encoder_attn", t)
        source, inter_sentence_gate = self.source_context(name, query, sentence, preceding)
        u, context_gate = self.connect(name, t, query, source)
        branch = self.feed_forward(f"{name}.", self.input(f"{name}.final", u))
        return self.add(f"{name}.final", u, branch), context_gate, inter_sentence_gate

    def decode(self, previous: Array, sentence: Sentence, preceding: Sentence | None = None) -> tuple:
        """Logits, and each kind of gate by layer."""
        words, positions = self.parameters["embed_tokens.weight"], self.parameters["embed_positions.weight"]
        length = previous.shape[1]
        # fairseq numbers positions from the padding symbol on.
        c = math.sqrt(words.shape[1]) * words[previous] + positions[PAD + 1 : PAD + 1 + length]
        context_gates, inter_sentence_gates = {}, {}
        for number in range(1, self.layers + 1):
            c, context_gates[number], inter_sentence_gates[number] = self.layer(number, c, sentence, preceding)
        if self.order == "pre":
            c = self.norm("layer_norm", c)
        return c @ self.parameters["output_projection.weight"].T, context_gates, inter_sentence_gates

    def encode(self, tokens: Array, mask: Array, operation: str = "fill") -> Array:
        """The encoder under a relation mask M, (batch, length, length) (Li, Zhu et al. 2022, equations 7 and 8): scores
        outside the mask are minus infinity (fill), or 0 (multiply)."""
        words, positions = self.parameters["embed_tokens.weight"], self.parameters["embed_positions.weight"]
        is_word = tokens != PAD
        h = math.sqrt(words.shape[1]) * words[tokens] + positions[PAD + np.cumsum(is_word, axis=1) * is_word]
        visible, factors = (mask, 1.0) if operation == "fill" else (1.0, mask)
        for number in range(self.layers):
            name = f"layers.{number}"
            query = self.input(f"{name}.self_attn", h)
            attended = self.attention(f"{name}.self_attn", query, query, is_word[:, None] * visible, factors)
            u = self.add(f"{name}.self_attn", h, attended)
            h = self.add(f"{name}.final", u, self.feed_forward(f"{name}.", self.input(f"{name}.final", u)))
        return self.norm("layer_norm", h) if self.order == "pre" else h


def encode(model: Any, tokens: Any) -> Sentence:
    """A sentence encoded by fairseq's own encoder."""
    states = model.encoder.forward_scriptable(tokens)["encoder_out"][0].transpose(0, 1).numpy()
    return Sentence(states, tokens.ne(PAD).unsqueeze(1).numpy())

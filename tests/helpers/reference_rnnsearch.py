"""Tiny RNNSearch models, and a reference implementation of RNNSearch, from the papers, in NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import numpy as np
import torch
from omegaconf import OmegaConf

from tests.helpers.models import EOS, is_test_time_ablation, make_task

# Widths that cannot be taken for each other.
TINY = {
    "encoder_embed_dim": 6,
    "encoder_hidden_size": 4,
    "decoder_embed_dim": 5,
    "decoder_hidden_size": 7,
    "decoder_output_dim": 3,
    "dropout": 0.0,
    "max_source_positions": 32,
    "max_target_positions": 32,
}
GATES = ("none", "source", "target", "both")


def build_rnnsearch(arch: str = "rnnsearch", task: Any = None, **options: Any) -> Any:
    """A model as training begins with it, with the sizes of ``TINY`` unless the options change them."""
    config = OmegaConf.create({"_name": arch, **TINY, **options})
    return (task or make_task()).build_model(config, from_checkpoint=is_test_time_ablation(options))


def make_rnnsearch(arch: str = "rnnsearch", task: Any = None, seed: int = 1, **options: Any) -> Any:
    """The same in float64 and evaluation mode, every parameter random."""
    model = build_rnnsearch(arch, task, **options).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = noise * (1.5 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.5)
    return model


class Decoded(NamedTuple):
    """What the decoder gives for one sentence: logits, (target length, vocabulary); the attention over the source,
    (target length, source length); z of the context gate and of the inter-sentence gate, (target length, width); and
    the attention over the preceding sentence, (target length, preceding length)."""

    logits: np.ndarray
    attention: np.ndarray
    context_gate: np.ndarray
    inter_sentence_gate: np.ndarray
    preceding_attention: np.ndarray


class ReferenceRNNSearch:
    """RNNSearch for one sentence, step by step, with a model's parameters.

    Args:
        gate: which of the context gates
        feedback: feedback attention
        closed: the inter-sentence gate z is 0
    """

    def __init__(self, model: Any, gate: str = "none", feedback: bool = False, closed: bool = False) -> None:
        self.parameters = {name: value.numpy() for name, value in model.state_dict().items()}
        self.gate, self.feedback, self.closed = gate, feedback, closed
        self.is_gated = "decoder.cell.source_parts.inter_sentence.gate.from_state.weight" in self.parameters

    def weight(self, name: str) -> np.ndarray:
        return self.parameters[f"{name}.weight"]

    def affine(self, name: str, x: np.ndarray) -> np.ndarray:
        """W x + b; a layer without bias gives W x."""
        return self.weight(name) @ x + self.parameters.get(f"{name}.bias", 0)

    def encode(self, tokens: Sequence[int]) -> list[np.ndarray]:
        """The annotations, [forward state; backward state]."""
        words = [self.weight("encoder.embed_tokens")[token] for token in tokens]
        forward = self.run_encoder(words, "")
        backward = self.run_encoder(words[::-1], "_reverse")[::-1]
        return [np.concatenate(states) for states in zip(forward, backward)]

    def run_encoder(self, words: Sequence[np.ndarray], direction: str) -> list[np.ndarray]:
        part = {
            name: self.parameters[f"encoder.gru.{name}_l0{direction}"]
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        state = np.zeros(part["weight_hh"].shape[1])
        states = []
        for word in words:
            x, h = part["weight_ih"] @ word + part["bias_ih"], part["weight_hh"] @ state + part["bias_hh"]
            (x_r, x_u, x_n), (h_r, h_u, h_n) = np.split(x, 3), np.split(h, 3)
            reset, update = sigmoid(x_r + h_r), sigmoid(x_u + h_u)
            state = (1 - update) * np.tanh(x_n + reset * h_n) + update * state
            states.append(state)
        return states

    def attend(self, name: str, state: np.ndarray, annotations: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The context c = Σ α_j h_j, and α."""
        name = f"decoder.cell.{name}"
        query = self.affine(f"{name}.query_proj", state)
        scores = [
            self.parameters[f"{name}.score"] @ np.tanh(query + self.affine(f"{name}.key_proj", h)) for h in annotations
        ]
        weights = np.exp(scores) / np.exp(scores).sum()
        return sum(weight * h for weight, h in zip(weights, annotations)), weights

    def decode(
        self,
        source: Sequence[int],
        previous: Sequence[int],
        preceding: Sequence[int] = (),
        preceding_contexts: np.ndarray | None = None,
    ) -> Decoded:
        """Decode a sentence.

        Args:
            source: its word ids
            previous: the target word before each step
            preceding: word ids of the preceding sentence
            preceding_contexts: replace c_a in each step, (target length, width)
        """
        h_b, h_a = self.encode(source), self.encode(preceding)
        half = len(h_b[0]) // 2
        state = np.tanh(self.weight("decoder.init_proj") @ h_b[0][half:])
        found = []
        for number, token in enumerate(previous):
            word = self.weight("decoder.embed_tokens")[token]
            before, target = state, [self.affine("decoder.cell.word_proj", word)]
            if self.feedback:
                state = gru(state, target, self.affine("decoder.cell.feedback_proj", state))
                target = []
            c_b, weights = self.attend("attention", state, h_b)
            context, mixing, preceding_weights = c_b, np.zeros(0), np.zeros(0)
            if self.is_gated:
                if preceding_contexts is None:
                    c_a, preceding_weights = self.attend("source_parts.inter_sentence.attention", state, h_a)
                else:
                    c_a = preceding_contexts[number]
                context, mixing = self.mix(before, word, c_b, c_a)
            z, of_source, of_target = self.scales(before, word, context)

            source_part = of_source * self.affine("decoder.cell.context_proj", context)
            recurrent = of_target * self.affine("decoder.cell.state_proj", state)
            state = gru(state, [source_part, *(of_target * part for part in target)], recurrent)
            found.append((self.predict(state, word, c_b), weights, z, mixing, preceding_weights))
        return Decoded(*(np.stack(part) for part in zip(*found)))

    def mix(self, state: np.ndarray, word: np.ndarray, c_b: np.ndarray, c_a: np.ndarray) -> tuple:
        """The gate z of equation 9, and the mixed context of equation 10, which replaces c_b."""
        name = "decoder.cell.source_parts.inter_sentence"
        z = sigmoid(
            self.affine(f"{name}.gate.from_state", state)
            + self.weight(f"{name}.from_word") @ word
            + self.weight(f"{name}.gate.from_sentence") @ c_b
            + self.weight(f"{name}.gate.from_preceding") @ c_a
        )
        if self.closed:
            z = np.zeros_like(z)
        c_1, c_2 = self.weight(f"{name}.gate.preceding_proj"), self.weight(f"{name}.gate.sentence_proj")
        return c_1 @ c_a * z + c_2 @ c_b * (1 - z), z

    def scales(self, state: np.ndarray, word: np.ndarray, context: np.ndarray) -> tuple:
        """The context gate, and the factors of source and target in the three parts of the GRU's input."""
        if self.gate == "none":
            return np.zeros(0), 1.0, 1.0
        name = "decoder.cell.connection"
        z = sigmoid(
            self.affine(f"{name}.from_word", word)
            + self.weight(f"{name}.from_state") @ state
            + self.weight(f"{name}.from_context") @ context
        )
        thrice = np.concatenate([z, z, z])
        return {
            "source": (z, thrice, 1.0),
            "target": (z, 1.0, thrice),
            "both": (z, thrice, 1 - thrice),
        }[self.gate]

    def predict(self, state: np.ndarray, word: np.ndarray, c_b: np.ndarray) -> np.ndarray:
        """The deep output and the output layer."""
        name = "decoder.deep_output"
        hidden = (
            self.affine(f"{name}.state_proj", state)
            + self.weight(f"{name}.word_proj") @ word
            + self.weight(f"{name}.context_proj") @ c_b
        )
        return self.weight("decoder.output_projection") @ hidden.reshape(2, -1).max(axis=0)


def gru(state: np.ndarray, inputs: list[np.ndarray], recurrent: np.ndarray) -> np.ndarray:
    """torch's gated recurrent unit: reset gate, update gate, candidate."""
    (x_r, x_u, x_n), (h_r, h_u, h_n) = np.split(sum(inputs), 3), np.split(recurrent, 3)
    reset, update = sigmoid(x_r + h_r), sigmoid(x_u + h_u)
    return (1 - update) * np.tanh(x_n + reset * h_n) + update * state


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# Of ``SOURCES`` in helpers/models.py: one longer than its sentence, a document's first, and one of one word.
PRECEDING = [[7, 9, 4, 4, 16, 18, EOS], [EOS, EOS, EOS], [5, EOS]]

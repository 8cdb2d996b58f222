"""The inter-sentence gate (Kuang and Xiong 2018, *Fusing Recency into NMT with an Inter-Sentence Gate Model*)."""

from dataclasses import dataclass, field
from typing import Any, Optional, Tuple

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

AblationChoice = ChoiceEnum(["none", "null", "closed", "random"])
NULL_LENGTH = 3  # of what stands before a document's first sentence


@dataclass
class InterSentenceGateConfig(FairseqDataclass):
    """Options of the gate, the same on every backbone."""

    inter_sentence_gate: bool = field(
        default=False,
        metadata={
            "help": "attend to the preceding source sentence as well, and let it in through a gate (Kuang and Xiong "
            "2018); the data directory needs the stream of `ctxgates preceding-sentences`"
        },
    )
    inter_sentence_layers: str = field(
        default="all", metadata={"help": "the decoder layers with that gate: all, 6 or 1,3-5"}
    )
    inter_sentence_ablation: AblationChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "what to take from that mechanism, to see what it does: every preceding sentence is NULL (null), "
            "the gate z is 0 (closed), or the preceding sentence's context is random (random)"
        },
    )


class InterSentenceGate(nn.Module):
    """Mixes the context of the sentence c_b with that of the sentence before it, c_a.

    Computes, after Kuang and Xiong 2018, equations 9 and 10,

        z = σ(U t + C_b c_b + C_a c_a + b),   s = C_1 c_a ⊙ z + C_2 c_b ⊙ (1 - z)

    where t is the decoder's state: in a Transformer layer the target context, in RNNSearch [s_{t-1}; y_{t-1}]. C_2
    starts as the identity, so that with z = 0 the sentence's context is what it is without the gate.

    Args:
        state_dim: width of t
        context_dim: width of c_a, c_b, z and s
        closed: z = 0, whatever is learned (an ablation)
    """

    def __init__(self, state_dim: int, context_dim: int, closed: bool = False) -> None:
        super().__init__()
        self.from_state = nn.Linear(state_dim, context_dim)  # U, b
        self.from_sentence = nn.Linear(context_dim, context_dim, bias=False)  # C_b
        self.from_preceding = nn.Linear(context_dim, context_dim, bias=False)  # C_a
        self.preceding_proj = nn.Linear(context_dim, context_dim, bias=False)  # C_1
        self.sentence_proj = nn.Linear(context_dim, context_dim, bias=False)  # C_2
        self.closed = closed
        for linear in (self.from_state, self.from_sentence, self.from_preceding, self.preceding_proj):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.from_state.bias)
        nn.init.eye_(self.sentence_proj.weight)

    def forward(self, state: Tensor, sentence: Tensor, preceding: Tensor) -> Tuple[Tensor, Tensor]:
        """
        Args:
            state: t, (..., state dim)
            sentence: c_b, (..., context dim)
            preceding: c_a, of the same shape

        Returns:
            s and z, each of the shape of c_b; z is the weight of the preceding sentence, between 0 and 1
        """
        if self.closed:
            z = torch.zeros_like(sentence)
        else:
            z = torch.sigmoid(self.from_state(state) + self.from_sentence(sentence) + self.from_preceding(preceding))
        return torch.lerp(self.sentence_proj(sentence), self.preceding_proj(preceding), z), z


def preceding_input(tokens: Optional[Tensor], ablation: str, dictionary: Any, max_positions: int) -> Tensor:
    """What a model encodes of the preceding sentences.

    Args:
        tokens: (batch, preceding length), padded on either side
        ablation: with ``null``, each is (eos, eos, eos), as that of a document's first sentence
        dictionary: the source's
        max_positions: a longer sentence is cut at its beginning

    Raises:
        ValueError: there are none.
    """
    if tokens is None:
        raise ValueError("net_input has no preceding_tokens: is this the task context_translation?")
    if ablation == "null":
        return torch.full_like(tokens[:, :1], dictionary.eos()).repeat(1, NULL_LENGTH)
    if tokens.size(1) > max_positions:
        tokens = utils.convert_padding_direction(tokens, dictionary.pad(), right_to_left=True)
        tokens = tokens[:, -max_positions:]
    return tokens


def sentence_keys(tokens: Tensor, padding: int) -> Tensor:
    """A number for each sentence, (batch,), int64, from its tokens (batch, length) alone: the same in whatever batch
    the sentence is, and on whichever side it is padded."""
    is_token = tokens.ne(padding)
    position = is_token.long().cumsum(dim=1)
    return _mixed(_mixed(tokens) + position).masked_fill(~is_token, 0).sum(dim=1)


def random_context(keys: Tensor, layer: int, steps: Tensor, dim: int) -> Tensor:
    """Numbers uniform in (-1, 1) that depend on sentence, layer, step and component, and on nothing else.

    Args:
        keys: of :func:`sentence_keys`, (batch,)
        layer: number of the decoder layer
        steps: (target length,), int64: the decoding steps
        dim: how many components

    Returns:
        (target length, batch, dim), float32
    """
    at_step = _mixed(_mixed(keys + layer) + steps.unsqueeze(1))
    bits = _mixed(at_step.unsqueeze(-1) + torch.arange(dim, device=keys.device))
    return ((bits >> 40).float() + 0.5) / (1 << 23)  # the upper 24 bits, a sign among them


def _mixed(x: Tensor) -> Tensor:
    """A permutation of the 64-bit integers that looks random (Steele et al. 2014, SplitMix64), element by element."""
    x = (x + 1) * -0x61C8864680B583EB
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills in zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)

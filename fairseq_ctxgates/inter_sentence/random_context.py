"""The random context of the ablation ``random``: numbers that follow from a sentence, a layer and a decoding step."""

from __future__ import annotations

import torch
from torch import Tensor


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

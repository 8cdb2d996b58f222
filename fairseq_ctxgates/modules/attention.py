"""Attention of a Transformer decoder layer over an encoded sentence, and what is encoded of a sentence."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_ctxgates.modules.quantization_noise import has_quantization_noise

IncrementalState = Dict[str, Dict[str, Any]]  # fairseq's: what decoding steps keep, by the name of its owner


class EncodedSentence(NamedTuple):
    """The states of an encoded sentence, and true in the mask at padding.

    On the Transformer (length, batch, embed dim) and (batch, length), or no mask when nothing is padded; on RNNSearch
    (sentences, length, context dim) and (sentences, length).
    """

    states: Tensor
    padding_mask: Optional[Tensor]


def attend(
    attention: MultiheadAttention,
    query: Tensor,
    sentence: EncodedSentence,
    incremental_state: Optional[IncrementalState] = None,
    need_weights: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """fairseq's multi-head attention over an encoded sentence.

    Args:
        attention: between encoder and decoder
        query: (target length, batch, embed dim)
        incremental_state: keeps keys and values between decoding steps

    Returns:
        the context, of the shape of the query, and, with ``need_weights``, the weights, (heads, batch, target length,
        source length), else None
    """
    # fairseq takes torch's faster attention where it can. That keeps no keys and values between decoding steps, has no
    # weights for each head, and reads the matrices of the projections without running these, which draws the noise.
    is_torchs = incremental_state is None and not need_weights and not has_quantization_noise(attention.q_proj)
    context, weights = attention(
        query=query,
        key=sentence.states,
        value=sentence.states,
        key_padding_mask=sentence.padding_mask,
        incremental_state=incremental_state,
        static_kv=not is_torchs,
        need_weights=need_weights,
        need_head_weights=need_weights,
    )
    return context, weights

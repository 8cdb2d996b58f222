"""Attention of a Transformer decoder layer over an encoded sentence, and the encoded sentence itself."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from fairseq import utils
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_ctxgates.modules.beams import sentences_of_beams
from fairseq_ctxgates.modules.quantization_noise import has_quantization_noise

IncrementalState = Dict[str, Dict[str, Any]]  # fairseq's: what decoding steps keep, by the name of its owner


class EncodedSentence(NamedTuple):
    """The states of encoded sentences, (length, batch, embed dim), and their padding mask, (batch, length), true at
    padding."""

    states: Tensor
    padding_mask: Tensor


class SentenceMemory(NamedTuple):
    """What attention keeps of encoded sentences between decoding steps, for each of its heads.

    Attributes:
        keys: k_j / √d_k, (sentences · heads, d_k, length)
        values: v_j, (sentences · heads, length, d_k)
        mask: added to the scores, -inf at padding and 0 elsewhere, (sentences · heads, 1, length)
        rows: the number of rows, k beams for each sentence; row i belongs to sentence i // k
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    rows: int


class SentenceAttention(MultiheadAttention):
    """fairseq's attention between decoder and encoder, but decoding steps read a sentence once for all of its beams.
    The parameters are those of fairseq's attention."""

    def step(
        self,
        query: Tensor,
        sentence: EncodedSentence,
        incremental_state: IncrementalState,
        need_weights: bool,
        name: str,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """The attention of decoding steps; see :func:`attend`."""
        length, rows, width = query.shape
        memories = self.memories(incremental_state)
        if name not in memories:
            memories[name] = self.read(sentence, rows)
        memory = memories[name]
        sentences = len(memory.keys) // self.num_heads
        # All positions of all beams of a sentence are queries of one product.
        queries = self.q_proj(query).view(length, sentences, -1, self.num_heads, self.head_dim)
        queries = queries.permute(1, 3, 2, 0, 4).reshape(len(memory.keys), -1, self.head_dim)
        scores = torch.baddbmm(memory.mask, queries, memory.keys)
        weights = utils.softmax(scores, dim=-1).type_as(scores)
        context = torch.bmm(self.dropout_module(weights), memory.values)
        size = (sentences, self.num_heads, -1, length)
        context = context.view(*size, self.head_dim).permute(3, 0, 2, 1, 4).reshape(length, rows, width)
        weights = weights.view(*size, weights.size(-1)).transpose(0, 1).flatten(1, 2) if need_weights else None
        return self.out_proj(context), weights

    def memories(self, incremental_state: IncrementalState) -> Dict[str, SentenceMemory]:
        """What decoding steps keep, by the name of the encoding."""
        memories: Optional[Dict[str, SentenceMemory]] = self.get_incremental_state(incremental_state, "memories")
        if memories is None:
            memories = {}
            self.set_incremental_state(incremental_state, "memories", memories)
        return memories

    def read(self, sentence: EncodedSentence, rows: int) -> SentenceMemory:
        """The memory of encoded sentences, for this number of rows."""
        length, sentences, _ = sentence.states.shape
        size = (length, sentences * self.num_heads, self.head_dim)
        keys = (self.k_proj(sentence.states) * self.scaling).view(size).permute(1, 2, 0)
        values = self.v_proj(sentence.states).view(size).transpose(0, 1)
        mask = keys.new_zeros(sentences, 1, length)
        mask.masked_fill_(sentence.padding_mask.unsqueeze(1), float("-inf"))
        return SentenceMemory(
            keys.contiguous(), values.contiguous(), mask.repeat_interleave(self.num_heads, dim=0), rows
        )

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the rows as fairseq's beam search does; other orders are not defined."""
        memories = self.memories(incremental_state)
        for name, memory in memories.items():
            memories[name] = self.reordered(memory, new_order)

    def reordered(self, memory: SentenceMemory, new_order: Tensor) -> SentenceMemory:
        """The memory for these rows."""
        sentences = sentences_of_beams(new_order, len(memory.keys) // self.num_heads, memory.rows)
        memory = memory._replace(rows=len(new_order))
        if sentences is None:
            return memory
        keys, values, mask = (
            part.view(-1, self.num_heads, *part.shape[1:]).index_select(0, sentences).flatten(0, 1)
            for part in (memory.keys, memory.values, memory.mask)
        )
        return memory._replace(keys=keys, values=values, mask=mask)


def run_projection_modules(model: nn.Module) -> None:
    """Let attention call its projections as modules, which may compute large products by oneDNN
    (:func:`~fairseq_ctxgates.modules.linear.replace_linear`). fairseq's attention otherwise calls torch's own where it
    can, which reads the projections' matrices directly. Only torch's own attention takes a mask for each sentence."""
    for module in model.modules():
        if isinstance(module, MultiheadAttention):
            module._set_skip_embed_dim_check()  # which has this effect


def attend(
    attention: SentenceAttention,
    query: Tensor,
    sentence: EncodedSentence,
    incremental_state: Optional[IncrementalState] = None,
    need_weights: bool = False,
    name: str = "sentence",
) -> Tuple[Tensor, Optional[Tensor]]:
    """Multi-head attention over encoded sentences.

    Args:
        attention: between encoder and decoder
        query: (target length, rows, embed dim); with k beams of each sentence, row i reads sentence i // k
        sentence: the encoded sentences
        incremental_state: while decoding, keeps keys and values of the sentences between steps; the beams of a sentence
            share them
        need_weights: also return the weights
        name: under which keys and values are kept, which one attention needs for each encoding that it reads

    Returns:
        the context, of the shape of the query, and, with ``need_weights``, the weights, (heads, rows, target length,
        source length), else None
    """
    if incremental_state is not None:
        return attention.step(query, sentence, incremental_state, need_weights, name)
    # Where it can, fairseq uses torch's faster attention. This one has no weights for each head, knows no beams, and
    # reads the matrices of the projections without calling the modules, which draw the quantization noise.
    has_beams = query.size(1) > sentence.states.size(1)
    may_be_torchs = not (need_weights or has_beams or has_quantization_noise(attention.q_proj))
    context, weights = attention(
        query=query,
        key=sentence.states,
        value=sentence.states,
        key_padding_mask=sentence.padding_mask,
        static_kv=not may_be_torchs,  # without an incremental state, this only makes fairseq use its own attention
        need_weights=need_weights,
        need_head_weights=need_weights,
    )
    return context, weights

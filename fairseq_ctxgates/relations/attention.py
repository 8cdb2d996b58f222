"""The encoder's self-attention under the mask of relations (FRA; Li, Zhu et al. 2022, *Grammatically Derived Factual
Relation Augmented Neural Machine Translation*), with the product of their equation 7."""

from __future__ import annotations

import math
from typing import Optional, Tuple

import torch
from fairseq import utils
from fairseq.modules import MultiheadAttention
from torch import Tensor


class MultiplyingAttention(MultiheadAttention):
    """Self-attention whose scores are multiplied by a mask of ones and zeros (Li, Zhu et al. 2022, equation 8, with
    the product of equation 7),

        softmax(M_s ⊙ q kᵀ / √d_k) v

    so that positions outside the mask have the score 0. What equation 7 multiplies, M_A, is taken to be the scores,
    because equation 8 has the mask inside the softmax. Padding is masked out. The parameters are those of fairseq's
    attention.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
        need_weights: bool = True,
        **kwargs: object,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As fairseq's, except that the mask is (batch · heads, length, length), bool, true outside of M_s. The weights
        that are returned are the mean over the heads, (batch, length, length)."""
        if attn_mask is None:
            kwargs.update(key_padding_mask=key_padding_mask, need_weights=need_weights)
            return super().forward(query, key, value, **kwargs)
        length, batch, _ = query.shape
        q, k, v = (
            projection(x).view(length, batch * self.num_heads, self.head_dim).transpose(0, 1)
            for projection, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        # q is scaled before the product, as in fairseq: in half precision the product itself could overflow.
        scores = torch.bmm(q * self.scaling, k.transpose(1, 2)).masked_fill(attn_mask, 0.0)
        if key_padding_mask is not None:
            is_padding = key_padding_mask[:, None, None].expand(-1, self.num_heads, 1, -1).reshape(-1, 1, length)
            scores = scores.masked_fill(is_padding, -math.inf)
        weights = self.dropout_module(utils.softmax(scores, dim=-1).type_as(scores))
        context = torch.bmm(weights, v).transpose(0, 1).reshape(length, batch, -1)
        mean = weights.view(batch, self.num_heads, length, length).mean(dim=1) if need_weights else None
        return self.out_proj(context), mean

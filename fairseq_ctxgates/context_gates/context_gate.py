"""The context gate on the Transformer (Li et al. 2020, *Regularized Context Gates on Transformer for MT*)."""

from __future__ import annotations

from typing import Tuple

import torch
from fairseq import utils
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_ctxgates.modules.interpolation import interpolate
from fairseq_ctxgates.modules.norm_order import SublayerNorm
from fairseq_ctxgates.parts import Connection, Returned, TransformerOptions

GATES = "context_gates"  # what the parts on both backbones return


class ContextGate(Connection):
    """Interpolates between the target context t and the source context s of one decoder layer.

    Computes, after Li et al. 2020, equations 3 and 4,

        z = σ(FF([t; s])),   u = (1 - z) ⊙ t + z ⊙ s

    FF is a two-layer feed-forward network 2d → f → d with the model's activation and activation dropout.

    Args:
        options: the model's; d is ``decoder.embed_dim``, f is ``decoder.ffn_embed_dim``
    """

    gates = (GATES,)

    def __init__(self, options: TransformerOptions) -> None:
        super().__init__()
        embed_dim, ffn_embed_dim = options.decoder.embed_dim, options.decoder.ffn_embed_dim
        self.fc1 = nn.Linear(2 * embed_dim, ffn_embed_dim)
        self.fc2 = nn.Linear(ffn_embed_dim, embed_dim)
        self.activation_fn = utils.get_activation_fn(options.activation_fn)
        self.activation_dropout_module = FairseqDropout(
            float(options.activation_dropout or options.relu_dropout or 0), module_name=self.__class__.__name__
        )

    def forward(
        self, target: Tensor, source: Tensor, target_input: Tensor, norm: SublayerNorm
    ) -> Tuple[Tensor, Returned]:
        """See :meth:`Connection.forward`. The gate reads ln(t) in the place of t in a pre-norm layer. Beside u it
        returns z, of the same shape, which is the weight of the source, between 0 and 1."""
        # Under autocast, attention returns half precision, and the target context is in single precision.
        s = norm.normalize_output(source.type_as(target))
        hidden = self.activation_fn(self.fc1(torch.cat([target_input, s], dim=-1)))
        z = torch.sigmoid(self.fc2(self.activation_dropout_module(hidden)))
        return interpolate(target, s, z), {GATES: z}

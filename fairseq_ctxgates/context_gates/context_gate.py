"""Context gates on the Transformer (Li et al. 2020, *Regularized Context Gates on Transformer for MT*)."""

from dataclasses import dataclass, field
from typing import Any, Optional, Tuple

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.modules import FairseqDropout
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_ctxgates.modules.norm_order import NormOrder

ContextGateChoice = ChoiceEnum(["none", "interpolate"])
NormOrderChoice = ChoiceEnum([order.value for order in NormOrder])


@dataclass
class ContextGateConfig(FairseqDataclass):
    """Options of the gate, and of the order of normalisation that its paper asks for."""

    context_gate: ContextGateChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "what joins source and target context in a decoder layer: the residual connection (none), or a "
            "gate that interpolates between them (Li et al. 2020)"
        },
    )
    decoder_norm_order: Optional[NormOrderChoice] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "where the decoder normalises: ln(x + f(x)) (post), x + f(ln(x)) (pre) or x + ln(f(x)) (inner, the "
            "context gate paper's); default: what --decoder-normalize-before says"
        },
    )


class ContextGate(nn.Module):
    """A gate between the target context t and the source context s of one decoder layer.

    Computes, after Li et al. 2020, equations 3 and 4,

        z = σ(FF([t; s])),   u = (1 - z) ⊙ t + z ⊙ s

    where FF is a two-layer feed-forward network 2d → f → d with the model's activation and activation dropout.

    Args:
        cfg: the model's ``TransformerConfig``; d is ``decoder.embed_dim``, f is ``decoder.ffn_embed_dim``
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        embed_dim, ffn_embed_dim = cfg.decoder.embed_dim, cfg.decoder.ffn_embed_dim
        noise = cfg.quant_noise.pq, cfg.quant_noise.pq_block_size
        self.fc1 = quant_noise(nn.Linear(2 * embed_dim, ffn_embed_dim), *noise)
        self.fc2 = quant_noise(nn.Linear(ffn_embed_dim, embed_dim), *noise)
        self.activation_fn = utils.get_activation_fn(cfg.activation_fn)
        self.activation_dropout_module = FairseqDropout(
            float(cfg.activation_dropout or cfg.relu_dropout or 0), module_name=self.__class__.__name__
        )

    def forward(self, target: Tensor, source: Tensor, target_input: Tensor) -> Tuple[Tensor, Tensor]:
        """
        Args:
            target: t, (target length, batch, embed dim)
            source: s, of the same shape
            target_input: what the gate reads of the target context, of the same shape: t, or ln(t) in a pre-norm layer

        Returns:
            u and z, each of the same shape; z is the weight of the source, between 0 and 1
        """
        hidden = self.activation_fn(self.fc1(torch.cat([target_input, source], dim=-1)))
        z = torch.sigmoid(self.fc2(self.activation_dropout_module(hidden)))
        return torch.lerp(target, source, z), z

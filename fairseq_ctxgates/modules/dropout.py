"""Dropout that draws fewer random numbers on a CPU."""

from typing import Optional

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

_LEVELS = 1 << 16

# The names of the dropout of fairseq's encoder and decoder, which are not those of their classes.
_NAMES_IN_FAIRSEQ = {"TransformerEncoderBase": "TransformerEncoder", "TransformerDecoderBase": "TransformerDecoder"}


class Dropout(FairseqDropout):
    """fairseq's dropout; on a CPU, 16 random bits decide each component.

    torch 2 spends a tenth of a Transformer's training step on drawing one number for each component. The probability is
    rounded to a multiple of 2⁻¹⁶, and the components that are kept are scaled exactly for the rounded probability.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """x, of any shape, with random components set to 0 and the others scaled up; x itself outside training."""
        if self.p == 0 or not (self.training or self.apply_during_inference):
            return x
        dropped = round(self.p * _LEVELS)
        if x.device.type != "cpu" or not 0 < dropped < _LEVELS:
            return F.dropout(x, p=self.p, training=True, inplace=inplace)
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        keep = words.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - _LEVELS // 2
        return x * keep.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))


def replace_dropout(model: nn.Module) -> None:
    """Replace every ``FairseqDropout`` of a model by :class:`Dropout`."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is FairseqDropout:
                setattr(parent, name, Dropout(child.p, module_name=_name_of(child, parent)))


def _name_of(dropout: FairseqDropout, parent: nn.Module) -> Optional[str]:
    """The name of a module's dropout in ``--retain-dropout-modules``. fairseq gives it that of the module's class; a
    class that extends one of fairseq's keeps that one's name, so that the option means the same for our models."""
    if dropout.module_name != type(parent).__name__:
        return dropout.module_name
    names = (base.__name__ for base in type(parent).__mro__ if base.__module__.startswith("fairseq."))
    name = next(names, dropout.module_name)
    return _NAMES_IN_FAIRSEQ.get(name, name)

"""Linear layers that a CPU computes by oneDNN."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Below this many rows and multiply-adds, converting the matrices to oneDNN's format costs more than it saves.
_MIN_ROWS = 32
_MIN_MULTIPLY_ADDS = 1 << 22


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """torch's ``linear``, the same up to rounding; large products in float32 on a CPU by oneDNN.

    torch leaves those products to MKL. On processors of other makers than Intel that takes two to four times as long as
    oneDNN, by which torch computes convolutions and LSTMs.

    Args:
        x: (..., input dim)
        weight: (output dim, input dim)
        bias: (output dim,)

    Returns:
        (..., output dim)
    """
    rows = x.numel() // x.size(-1)
    is_large = rows >= _MIN_ROWS and rows * weight.numel() >= _MIN_MULTIPLY_ADDS
    if is_large and x.device.type == "cpu" and x.dtype == torch.float32 and _has_onednn():
        return F.linear(x.to_mkldnn(), weight, bias).to_dense()
    return F.linear(x, weight, bias)


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


class Linear(nn.Linear):
    """torch's linear layer, by :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def replace_linear(model: nn.Module) -> None:
    """Make every ``nn.Linear`` of a model a :class:`Linear`; parameters, also shared ones, stay what they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear

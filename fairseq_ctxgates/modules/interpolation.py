"""Interpolation between two tensors, also under autocast."""

from __future__ import annotations

import torch
from torch import Tensor


def interpolate(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """(1 - weight) ⊙ start + weight ⊙ end, element by element, (...), in the widest of the three types.

    Under autocast (``--amp``) one operand may come from a matrix product, in half precision, and another one from layer
    normalization, in single precision. torch's ``lerp`` refuses to mix them, and autocast does not convert them.
    """
    dtype = torch.promote_types(torch.promote_types(start.dtype, end.dtype), weight.dtype)
    # torch before 2 has no lerp in half precision on a CPU.
    computed = torch.float32 if dtype in (torch.float16, torch.bfloat16) and start.device.type == "cpu" else dtype
    return torch.lerp(start.to(computed), end.to(computed), weight.to(computed)).to(dtype)

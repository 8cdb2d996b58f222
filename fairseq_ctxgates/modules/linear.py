"""Linear layers that a CPU computes by oneDNN if torch's MKL is slow."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Below this many rows and multiply-adds, converting the matrices to oneDNN's format costs more than it saves.
_MIN_ROWS = 32
_MIN_MULTIPLY_ADDS = 1 << 22
_PROCESSORS = Path("/proc/cpuinfo")

# Whether torch.compile runs the code. torch before 2.1 cannot tell; there, oneDNN ends a compiled graph.
_is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """torch's ``linear``, the same up to rounding. On some CPUs, oneDNN computes large products in float32.

    Args:
        x: (..., input dim)
        weight: (output dim, input dim)
        bias: (output dim,)

    Returns:
        (..., output dim)
    """
    if _is_for_onednn(x, weight):
        return F.linear(x.to_mkldnn(), weight, bias).to_dense()
    return F.linear(x, weight, bias)


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    if _is_compiling() or x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    rows = x.shape[:-1].numel()
    if rows < _MIN_ROWS or rows * weight.numel() < _MIN_MULTIPLY_ADDS:
        return False
    return onednn_is_faster() and bool(torch.backends.mkldnn.enabled) and not _is_autocast()  # autocast is bfloat16


@lru_cache(maxsize=None)
def onednn_is_faster() -> bool:
    """Whether oneDNN computes large products faster than torch's MKL. It does on x86 processors of makers other than
    Intel, for which MKL before 2021 (torch before 2.0) has no fast code.

    This is a fixed rule, not a measurement at the start, so that the rounding is the same in each run. The rule rests
    on measurements (docs/decisions.md).
    """
    has_both = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    return has_both and maker_of_processor() not in ("GenuineIntel", "") and 0 < year_of_mkl() < 2021


def year_of_mkl() -> int:
    """The year in the version of torch's MKL; 0 if torch does not report the version."""
    match = re.search(r"Math Kernel Library Version (\d+)", torch.__config__.show())
    return int(match.group(1)) if match else 0


def maker_of_processor() -> str:
    """The maker of an x86 processor, such as ``AuthenticAMD``; empty on systems other than Linux."""
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def _is_autocast() -> bool:
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4 or later
        return torch.is_autocast_enabled("cpu")
    return bool(torch.is_autocast_cpu_enabled())


class Linear(nn.Linear):
    """torch's linear layer, computed by :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def replace_linear(model: nn.Module) -> None:
    """Turn every ``nn.Linear`` of a model into a :class:`Linear` if that can be faster. Parameters, also shared ones,
    stay what they are."""
    if not onednn_is_faster():
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear

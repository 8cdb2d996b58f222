"""Quantization noise (Fan et al. 2021, *Training with Quantization Noise for Extreme Model Compression*), which fairseq
adds to the linear layers of a Transformer."""

from torch import nn

from fairseq_ctxgates.compat import quant_noise


def add_quantization_noise(module: nn.Module, probability: float, block_size: int) -> None:
    """Add fairseq's noise of ``--quant-noise-pq`` to every linear layer of a module that has none yet.

    Args:
        probability: the probability that a block is dropped in a forward pass
        block_size: the number of inputs in a block of a matrix's row
    """
    for linear in module.modules():
        if isinstance(linear, nn.Linear) and not has_quantization_noise(linear):
            quant_noise(linear, probability, block_size)


def has_quantization_noise(linear: nn.Module) -> bool:
    """Whether running a linear layer draws noise: by a hook (``--quant-noise-pq``), or because fairseq has replaced the
    layer by one of another class (``--quant-noise-scalar``)."""
    return not isinstance(linear, nn.Linear) or bool(linear._forward_pre_hooks)

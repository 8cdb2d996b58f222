"""Quantization noise (Fan et al. 2021, *Training with Quantization Noise for Extreme Model Compression*), which fairseq
puts on the linear layers of a Transformer."""

from torch import nn

from fairseq_ctxgates.compat import quant_noise


def add_quantization_noise(module: nn.Module, probability: float, block_size: int) -> None:
    """Put fairseq's noise of ``--quant-noise-pq`` on every linear layer of a module that has none yet.

    Args:
        probability: of a block to be dropped in a forward pass
        block_size: how many inputs of a matrix's row are one block
    """
    for linear in module.modules():
        if isinstance(linear, nn.Linear) and not has_quantization_noise(linear):
            quant_noise(linear, probability, block_size)


def has_quantization_noise(linear: nn.Module) -> bool:
    """Whether running a linear layer draws noise: by a hook (``--quant-noise-pq``), or because fairseq has put a layer
    of another class in its place (``--quant-noise-scalar``)."""
    return not isinstance(linear, nn.Linear) or bool(linear._forward_pre_hooks)

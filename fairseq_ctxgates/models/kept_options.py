"""The options that decide what a model computes from its parameters, but the shape of none: a model that goes on from
another one's parameters must keep them."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.mechanism import Mechanism
from fairseq_ctxgates.modules.norm_order import NormOrder

# Those of the backbones.
KEPT_OPTIONS = (
    "encoder_attention_heads",
    "decoder_attention_heads",
    "activation_fn",
    "no_scale_embedding",
    "no_token_positional_embeddings",
)


def kept_options(options: object, mechanisms: Sequence[Mechanism]) -> Dict[str, str]:
    """Those of :data:`KEPT_OPTIONS` that a model has, the norm order of a Transformer's decoder, and those of the
    mechanisms that it has, as text.

    Args:
        options: the model's, as attributes; those of old checkpoints lack some
        mechanisms: the model may have others
    """
    values = {name: str(getattr(options, name)) for name in KEPT_OPTIONS if hasattr(options, name)}
    if hasattr(options, "decoder_normalize_before"):
        given = getattr(options, "decoder_norm_order", None)
        values["decoder_norm_order"] = NormOrder.choose(given, options.decoder_normalize_before).value
    for mechanism in mechanisms:
        if mechanism.is_on_in(options):
            values.update(mechanism.kept_values(options))
    return values


def find_change(trained: object, given: object, mechanisms: Sequence[Mechanism]) -> Optional[str]:
    """What a model with other kept options than a checkpoint's would be, for an error message; None if all are kept.

    Args:
        trained: the options of the checkpoint's model, as attributes
        given: those of the model that is to go on from it
        mechanisms: the model's
    """
    before = kept_options(trained, mechanisms)
    for name, value in kept_options(given, mechanisms).items():
        if before.get(name, value) != value:
            return (
                f"trained with {as_flag(name)} {before[name]}, and the model has {value}, with which the same "
                f"parameters compute something else"
            )
    return None

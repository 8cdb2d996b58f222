"""The options of the Transformer architectures: fairseq's own, flat, and the mechanisms'.

fairseq keeps the Transformer's options in a dataclass of dataclasses, which it cannot register for the command line and
for Hydra at once. Here it is flattened (``encoder.embed_dim`` becomes ``encoder_embed_dim``), as the names on the
command line are.
"""

from argparse import Namespace
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from typing import Any, List, Optional, Tuple, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from fairseq_ctxgates.context_gates.context_gate import ContextGateConfig
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.gate import InterSentenceGateConfig
from fairseq_ctxgates.models.warm_start import WarmStartConfig
from fairseq_ctxgates.relations.fusion import RelationFusionConfig
from fairseq_ctxgates.smoothing.context_aware_smoothing import SmoothingConfig


@dataclass
class MechanismsConfig(
    WarmStartConfig, SmoothingConfig, RelationFusionConfig, InterSentenceGateConfig, ContextGateConfig
):
    """Every mechanism's options, as a model's parts read them: ``cfg.mechanisms``."""

    @property
    def norm_order(self) -> str:
        """``decoder_norm_order`` with its default filled in by :func:`transformer_config`."""
        return str(self.decoder_norm_order)


# Options that fairseq's `transformer` derives from others when they are not given, and lists that it reads as text.
_AS_TEXT = ("encoder_layers_to_keep", "decoder_layers_to_keep")
_DERIVED = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}
_UNSUPPORTED = ("cross_self_attention", "no_cross_attention", "base_layers")


def _flat_fields(config: Type[FairseqDataclass], prefix: str = "") -> List[Tuple[str, Any, Any]]:
    flat = []
    for option in fields(config):
        name = f"{prefix}{option.name}"
        if option.name == "_name" or name in _UNSUPPORTED:
            continue
        if isinstance(option.type, type) and issubclass(option.type, FairseqDataclass):
            flat += _flat_fields(option.type, prefix=f"{name}_")
        elif name in _DERIVED:
            metadata = {"help": f"default: that of --{_DERIVED[name].replace('_', '-')}"}
            flat.append((name, Optional[int], field(default=None, metadata=metadata)))
        else:
            flat.append((name, Optional[str] if name in _AS_TEXT else option.type, _copy(option)))
    return flat


def _copy(option: Field) -> Any:
    if option.default_factory is not MISSING:
        return field(default_factory=option.default_factory, metadata=option.metadata)
    return field(default=option.default, metadata=option.metadata)


ContextTransformerConfig = make_dataclass(
    "ContextTransformerConfig",
    _flat_fields(TransformerConfig) + _flat_fields(MechanismsConfig),
    bases=(FairseqDataclass,),
)


def transformer_config(flat: Any) -> TransformerConfig:
    """fairseq's nested configuration from the flat one, derived defaults filled in, with ``mechanisms`` added to it.

    Raises:
        UserError: options that contradict each other.
    """
    values = {option.name: getattr(flat, option.name) for option in fields(ContextTransformerConfig)}
    for name, other in _DERIVED.items():
        if values.get(name) is None:
            values[name] = values[other]
    pre_norm = values["decoder_normalize_before"]
    if values["decoder_norm_order"] is None:
        values["decoder_norm_order"] = "pre" if pre_norm else "post"
    elif pre_norm != (str(values["decoder_norm_order"]) == "pre"):
        raise UserError(
            f"--decoder-norm-order {values['decoder_norm_order']} contradicts --decoder-normalize-before "
            f"({pre_norm}): give both for pre-norm, only the first otherwise"
        )
    mechanisms = {option.name: values.pop(option.name) for option in fields(MechanismsConfig) if option.name != "_name"}
    cfg = TransformerConfig.from_namespace(Namespace(**values))
    cfg.mechanisms = MechanismsConfig(**mechanisms)
    return cfg

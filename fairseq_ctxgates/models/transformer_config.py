"""The options of the Transformer architectures: fairseq's own, flat, and the mechanisms'.

fairseq keeps the Transformer's options in a dataclass of dataclasses, which it cannot register for the command line and
for Hydra at once. Here it is flattened (``encoder.embed_dim`` becomes ``encoder_embed_dim``), as the names on the
command line are.
"""

from argparse import Namespace
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from typing import Any, Dict, List, Optional, Tuple, Type

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ctxgates.compat import TransformerConfig
from fairseq_ctxgates.configuration import as_flag, plain
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import TRANSFORMER, Mechanism, build_mechanisms
from fairseq_ctxgates.mechanisms import all_mechanisms
from fairseq_ctxgates.models.warm_start import WarmStartConfig
from fairseq_ctxgates.modules.norm_order import NormOrder

NormOrderChoice = ChoiceEnum([order.value for order in NormOrder])


@dataclass
class DecoderNormOrderConfig(FairseqDataclass):
    """The place of layer normalization in the decoder."""

    decoder_norm_order: Optional[NormOrderChoice] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "where the decoder normalizes: ln(x + f(x)) (post), x + f(ln(x)) (pre, only together with "
            "--decoder-normalize-before) or x + ln(f(x)) (inner, Li et al. 2020); default: what "
            "--decoder-normalize-before says"
        },
    )


# Lists that fairseq's `transformer` reads as text, and options that it derives from others if they are not given.
_AS_TEXT = ("encoder_layers_to_keep", "decoder_layers_to_keep")
_DERIVED = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}
_UNSUPPORTED = (
    "cross_self_attention",
    "no_cross_attention",
    "base_layers",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
)
FlatField = Tuple[str, Any, Any]  # name, type and dataclasses.field


def _flat_fields(config: Type[FairseqDataclass], prefix: str = "") -> List[FlatField]:
    flat = []
    for option in fields(config):
        name = f"{prefix}{option.name}"
        if option.name == "_name" or name in _UNSUPPORTED:
            continue
        if isinstance(option.type, type) and issubclass(option.type, FairseqDataclass):
            flat += _flat_fields(option.type, prefix=f"{name}_")
        elif name in _DERIVED:
            metadata = {"help": f"default: that of {as_flag(_DERIVED[name])}"}
            flat.append((name, Optional[int], field(default=None, metadata=metadata)))
        else:
            flat.append((name, Optional[str] if name in _AS_TEXT else option.type, _copy(option)))
    return flat


def _copy(option: Field) -> object:
    if option.default_factory is not MISSING:
        return field(default_factory=option.default_factory, metadata=option.metadata)
    return field(default=option.default, metadata=option.metadata)


_OWN = (
    *(mechanism.configs[TRANSFORMER] for mechanism in all_mechanisms() if TRANSFORMER in mechanism.configs),
    DecoderNormOrderConfig,
    WarmStartConfig,
)


class NestedConfig(TransformerConfig):
    """fairseq's nested configuration, with three things that our model needs: the mechanisms that are on, the options
    that would do nothing (see :meth:`Mechanism.unread_options`), and the decoder's norm order."""

    mechanisms: Tuple[Mechanism, ...]
    unread_options: Dict[str, str]
    decoder_norm_order: NormOrder


ContextTransformerConfig = make_dataclass(
    "ContextTransformerConfig",
    [option for config in (TransformerConfig, *_OWN) for option in _flat_fields(config)],
    bases=(FairseqDataclass,),
)


def option_values(flat: FairseqDataclass) -> Dict[str, Any]:
    """All options by name, derived defaults filled in; enumerations are plain strings."""
    values: Dict[str, Any] = {
        option.name: plain(getattr(flat, option.name)) for option in fields(ContextTransformerConfig)
    }
    for name, other in _DERIVED.items():
        if values.get(name) is None:
            values[name] = values[other]
    return values


def stock_options(flat: FairseqDataclass) -> Dict[str, Any]:
    """The options among :func:`option_values` that fairseq's own ``transformer`` has."""
    values = option_values(flat)
    return {name: values[name] for name, _, _ in _flat_fields(TransformerConfig)}


def transformer_config(flat: FairseqDataclass) -> NestedConfig:
    """The nested configuration from the flat one, derived defaults filled in. Enumerations are plain strings.

    Raises:
        UserError: options contradict each other, or would do nothing.
    """
    values = option_values(flat)
    norm_order = _norm_order(values["decoder_normalize_before"], values["decoder_norm_order"])
    kept = values["decoder_layers_to_keep"]
    num_layers = len(kept.split(",")) if kept else values["decoder_layers"]
    mechanisms, unread_options = build_mechanisms(all_mechanisms(), TRANSFORMER, Namespace(**values), num_layers)
    cfg: NestedConfig = NestedConfig.from_namespace(Namespace(**values))
    cfg.mechanisms, cfg.unread_options = mechanisms, unread_options
    cfg.decoder_norm_order = norm_order
    return cfg


def _norm_order(is_pre_norm: bool, given: Optional[str]) -> NormOrder:
    chosen = NormOrder.choose(given, is_pre_norm)
    if is_pre_norm != (chosen is NormOrder.PRE):
        raise UserError(
            f"--decoder-norm-order {given} contradicts --decoder-normalize-before ({is_pre_norm}): give both for "
            f"pre-norm, only the first otherwise"
        )
    return chosen

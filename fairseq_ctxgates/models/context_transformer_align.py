"""The Transformer that learns to align and translate (Garg et al. 2019, *Jointly Learning to Align and Translate with
Transformer Models*), with the mechanisms' parts, and its named architectures."""

from dataclasses import dataclass, field, make_dataclass
from typing import Dict, Tuple

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import TRANSFORMER, Defaults
from fairseq_ctxgates.models.context_model import Extra
from fairseq_ctxgates.models.context_transformer import SIZES, ContextTransformerModel
from fairseq_ctxgates.models.mechanism_parts import EncoderOut
from fairseq_ctxgates.models.presets import register_presets
from fairseq_ctxgates.models.transformer_config import ContextTransformerConfig


@dataclass
class AlignmentConfig(FairseqDataclass):
    """The options of fairseq's ``transformer_align``."""

    alignment_layer: int = field(
        default=4,
        metadata={"help": "the decoder layer whose attention over the source is the alignment, from 0 at the bottom"},
    )
    alignment_heads: int = field(
        default=1, metadata={"help": "average the attention of this number of heads of that layer, the first ones"}
    )
    full_context_alignment: bool = field(
        default=False,
        metadata={"help": "align in a second pass through the decoder, in which each target word sees all others"},
    )


ContextTransformerAlignConfig = make_dataclass(
    "ContextTransformerAlignConfig", [], bases=(AlignmentConfig, ContextTransformerConfig)
)


class ContextTransformerAlignModel(ContextTransformerModel):
    """fairseq's ``transformer_align`` with the parts of the mechanisms that its options turn on.

    The attention that it returns, ``attn``, is that of ``--alignment-layer`` and ``--alignment-heads``, also while
    decoding; ``--criterion label_smoothed_cross_entropy_with_alignment`` trains it towards alignments.
    """

    Config = ContextTransformerAlignConfig
    full_context_alignment: bool  # read by fairseq's generator

    @classmethod
    def build_model(cls, cfg: FairseqDataclass, task: FairseqTask) -> "ContextTransformerAlignModel":
        """As :meth:`ContextTransformerModel.build_model`; also raises UserError for a layer or heads that the decoder
        does not have, or does not have in every step of training."""
        if getattr(task.cfg, "load_alignments", False) and cfg.decoder_layerdrop > 0:
            raise UserError(
                f"--decoder-layerdrop {cfg.decoder_layerdrop} would also drop the layer that learns to align: leave it "
                f"out, or --load-alignments"
            )
        model: ContextTransformerAlignModel = super().build_model(cfg, task)
        _check_number("--alignment-layer", cfg.alignment_layer, 0, model.decoder.num_layers - 1, "layers")
        _check_number("--alignment-heads", cfg.alignment_heads, 1, cfg.decoder_attention_heads, "heads")
        model.decoder.alignment_layer, model.decoder.alignment_heads = cfg.alignment_layer, cfg.alignment_heads
        model.full_context_alignment = cfg.full_context_alignment
        return model

    def decode(self, prev_output_tokens: Tensor, encoder_out: EncoderOut, **arguments: object) -> Tuple[Tensor, Extra]:
        """As :meth:`ContextModel.decode`; with ``--full-context-alignment`` attention is that of a second pass."""
        logits, extra = super().decode(prev_output_tokens, encoder_out, **arguments)
        if self.full_context_alignment and arguments.get("return_attention", True):
            _, aligned = super().decode(
                prev_output_tokens, encoder_out, features_only=True, full_context_alignment=True
            )
            extra["attn"] = aligned["attn"]
        return logits, extra


def _check_number(option: str, value: int, first: int, last: int, what: str) -> None:
    if not first <= value <= last:
        raise UserError(f"{option} {value}: the decoder's {what} are {first} to {last}")


# Garg et al. align the last layer but one. So does the default, for 6 layers.
ALIGNED_SIZES: Dict[str, Defaults] = {f"_align{size}": options for size, options in SIZES.items()}
ALIGNED_SIZES["_align_tiny"] = {**SIZES["_tiny"], "alignment_layer": 0}

register_presets(ContextTransformerAlignModel, TRANSFORMER, "context_transformer", ALIGNED_SIZES)

"""Factual relations (FRA; Li, Zhu et al. 2022) as a mechanism: its options and its place in a model."""

from dataclasses import dataclass, field
from typing import Callable, Dict, Optional, Tuple, Type

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.layer_list import parse_layers
from fairseq_ctxgates.mechanism import TRANSFORMER, EncoderInput, Mechanism
from fairseq_ctxgates.modules.attention import SentenceAttention
from fairseq_ctxgates.parts import TransformerOptions
from fairseq_ctxgates.relations.attention import MultiplyingAttention
from fairseq_ctxgates.relations.fusion import FUSIONS, RelationContext
from fairseq_ctxgates.relations.stream import Relations

FusionChoice = ChoiceEnum(["none", *FUSIONS])
MaskOperationChoice = ChoiceEnum(["fill", "multiply"])
AblationChoice = ChoiceEnum(["none", "compare"])
MASK_OPERATION = "relation_mask_operation"


@dataclass
class RelationFusionConfig(FairseqDataclass):
    """The options of the second encoding and its fusion."""

    relation_fusion: FusionChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "encode the source once more, so that words see only the words of their factual relations, and "
            "fuse this relation encoding into the decoder in this way (Li, Zhu et al. 2022); the data directory needs "
            "the stream of `ctxgates relations`"
        },
    )
    relation_layers: Optional[str] = field(
        default=None,
        metadata={"help": "the decoder layers with the fusion: all, 6 or 1,3-5; default: the top layer"},
    )
    relation_lambda: float = field(
        default=0.4, metadata={"help": "with --relation-fusion linear: weight of the relation context, from 0 to 1"}
    )
    relation_mask_operation: MaskOperationChoice = field(  # type: ignore[valid-type]
        default="fill",
        metadata={
            "help": "what happens to attention scores outside the relation mask: they become minus infinity (fill), or "
            "are multiplied by 0 (multiply, the product of equation 7)"
        },
    )
    separate_relation_attention: bool = field(
        default=False,
        metadata={
            "help": "attend to the relation encoding with separate parameters; default: with those of the attention "
            "over the sentence"
        },
    )
    relation_ablation: AblationChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={"help": "ablation: fuse the ordinary encoding in place of the relation encoding (compare)"},
    )


class FactualRelations(Mechanism[RelationFusionConfig]):
    """A second encoding of the source, under the mask of its factual relations, fused into the decoder."""

    name = "relations"
    configs = {TRANSFORMER: RelationFusionConfig}
    switch = "relation_fusion"
    layers_option = "relation_layers"
    kept_options = ("relation_fusion", "relation_lambda", MASK_OPERATION)
    architectures = {TRANSFORMER: {"fra_transformer": {"relation_fusion": "transform"}}}
    streams = (Relations,)

    @classmethod
    def kept_values(cls, options: object) -> Dict[str, str]:
        """See :meth:`Mechanism.kept_values`; for linear fusion also the numbers of the layers with it.

        Raises:
            UserError: the list of layers is none, or names a layer that the model does not have.
        """
        values = super().kept_values(options)
        num_layers = getattr(options, "decoder_layers", None)
        # Other fusions have parameters, whose names name the layers.
        if values["relation_fusion"] == "linear" and num_layers is not None:
            listed = getattr(options, "relation_layers", None)
            layers = parse_layers(listed or str(num_layers), num_layers, as_flag("relation_layers"))
            values["relation_layers"] = ",".join(map(str, layers))
        return values

    def check(self) -> None:
        if not 0 <= self.options.relation_lambda <= 1:
            raise UserError(f"--relation-lambda {self.options.relation_lambda}: it must be between 0 and 1")
        if self.options.relation_fusion != "linear":
            self.refuse_unread("--relation-fusion linear", "relation_lambda")
        if not self.reads_relations:
            self.refuse_unread("the relation encoding, which --relation-ablation compare leaves out", MASK_OPERATION)

    @property
    def reads_relations(self) -> bool:
        """Whether there is a second encoding, under the mask of relations; the ablation Compare Fusion has none."""
        return self.options.relation_ablation == "none"

    @property
    def required_streams(self) -> Tuple[str, ...]:
        return (Relations.name,) if self.reads_relations else ()

    @property
    def unread_streams(self) -> Tuple[str, ...]:
        return () if self.reads_relations else (Relations.name,)

    def encoder_attention(self) -> Optional[Type[MultiheadAttention]]:
        multiplies = self.reads_relations and self.options.relation_mask_operation == "multiply"
        return MultiplyingAttention if multiplies else None

    def source_masks(self, encoder_input: EncoderInput) -> Dict[str, Tensor]:
        return {"relation": encoder_input.require("relation_mask")} if self.reads_relations else {}

    def source_part(
        self, layer: int, options: TransformerOptions, new_attention: Callable[[], SentenceAttention]
    ) -> Optional[RelationContext]:
        own = self.options
        fusion = FUSIONS[own.relation_fusion](options.decoder.embed_dim, own.relation_lambda)
        return RelationContext(
            fusion, new_attention() if own.separate_relation_attention else None, self.reads_relations
        )

"""The Transformer with the mechanisms in its decoder layers, and its named architectures."""

import re
from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_ctxgates.compat import EncoderLayer
from fairseq_ctxgates.inter_sentence.gate import preceding_input, random_context, sentence_keys
from fairseq_ctxgates.models.decoder_layer import (
    ContextDecoderLayer,
    IncrementalState,
    LayerOutput,
    inter_sentence_layers,
)
from fairseq_ctxgates.models.presets import check_task, register_presets
from fairseq_ctxgates.models.transformer_config import ContextTransformerConfig, transformer_config
from fairseq_ctxgates.modules.dropout import replace_dropout
from fairseq_ctxgates.relations.fusion import (
    MultiplyingEncoderLayer,
    both_masks,
    encodes_relations,
    relation_layers,
)
from fairseq_ctxgates.smoothing.context_aware_smoothing import build_smoothing, embed_words

EncoderOut = Dict[str, List[Tensor]]


class ContextTransformerEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder, the same on both stacks, over embeddings that may be smoothed; it also encodes the
    preceding sentence where there is an inter-sentence gate for it, and the sentence once more under its relation mask
    where relations are fused into the decoder."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.smoothing = build_smoothing(
            cfg.mechanisms, "encoder", embed_tokens.embedding_dim, dictionary, self.embed_scale
        )
        self.encodes_preceding = bool(inter_sentence_layers(cfg))
        self.ablation = str(cfg.mechanisms.inter_sentence_ablation)
        self.encodes_relations = encodes_relations(cfg)
        self.attention_heads = cfg.encoder.attention_heads

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        multiplies = encodes_relations(cfg) and str(cfg.mechanisms.relation_operation) == "multiply"
        return _wrap_layer(MultiplyingEncoderLayer(cfg) if multiplies else EncoderLayer(cfg), cfg)

    def forward_embedding(self, src_tokens: Tensor, token_embedding: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        if token_embedding is None:
            token_embedding = embed_words(self.embed_tokens, src_tokens, self.smoothing)
        embedded: Tuple[Tensor, Tensor] = super().forward_embedding(src_tokens, token_embedding)
        return embedded

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
        preceding_tokens: Optional[Tensor] = None,
        relation_mask: Optional[Tensor] = None,
    ) -> EncoderOut:
        """As fairseq's. Where there is an inter-sentence gate, it encodes ``preceding_tokens``, (batch, preceding
        length), as well, and the result also has ``preceding_out``, h_a, (preceding length, batch, embed dim), and
        ``preceding_padding_mask``, (batch, preceding length). Where relations are fused, it encodes the source under
        ``relation_mask``, (batch, source length, source length), as well, and the result also has ``relation_out``, h',
        (source length, batch, embed dim)."""
        encoder_out: EncoderOut
        if self.encodes_relations:
            encoder_out = self.encode_twice(src_tokens, relation_mask, return_all_hiddens, token_embeddings)
        else:
            encoder_out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        if self.encodes_preceding:
            tokens = preceding_input(preceding_tokens, self.ablation, self.dictionary, self.max_positions())
            preceding = super().forward(tokens)
            encoder_out["preceding_out"] = preceding["encoder_out"]
            encoder_out["preceding_padding_mask"] = preceding["encoder_padding_mask"]
            if self.ablation == "random":
                encoder_out["sentence_keys"] = [sentence_keys(src_tokens, self.padding_idx)]
        return encoder_out

    def encode_twice(
        self,
        src_tokens: Tensor,
        relation_mask: Optional[Tensor],
        return_all_hiddens: bool,
        token_embeddings: Optional[Tensor],
    ) -> EncoderOut:
        """Encode the source as always and under the relation mask, by the same layers, as one batch of twice the size
        (Li et al. 2022, equation 8).

        Raises:
            ValueError: there is no mask.
        """
        if relation_mask is None:
            raise ValueError("net_input has no relation_mask: is this the task context_translation?")
        padding_mask = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        x = x.masked_fill(padding_mask.unsqueeze(-1), 0).transpose(0, 1).repeat(1, 2, 1)
        both_padding_masks = padding_mask.repeat(2, 1) if padding_mask.any() else None
        attention_mask = both_masks(relation_mask, self.attention_heads)
        states = [x]
        for layer in self.layers:
            x = layer(x, both_padding_masks, attention_mask)
            states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        # Contiguous, or every product of a decoder layer would copy them.
        sentence, relation = (half.contiguous() for half in x.chunk(2, dim=1))
        return {
            "encoder_out": [sentence],
            "relation_out": [relation],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": [state.chunk(2, dim=1)[0] for state in states] if return_all_hiddens else [],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~padding_mask).sum(dim=1, keepdim=True, dtype=torch.int32)],
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        reordered: EncoderOut = super().reorder_encoder_out(encoder_out, new_order)
        batch_dims = {"preceding_out": 1, "preceding_padding_mask": 0, "sentence_keys": 0, "relation_out": 1}
        for name, batch_dim in batch_dims.items():
            if name in encoder_out:
                reordered[name] = [tensor.index_select(batch_dim, new_order) for tensor in encoder_out[name]]
        return reordered


class ContextTransformerDecoder(TransformerDecoderBase):
    """fairseq's Transformer decoder over :class:`ContextDecoderLayer` and embeddings that may be smoothed, with its own
    short loop over the layers: it hands on what fairseq's loop throws away."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.smoothing = build_smoothing(
            cfg.mechanisms, "decoder", embed_tokens.embedding_dim, dictionary, self.embed_scale
        )

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        # TransformerDecoderBase builds its layers in order, so the attribute counts them.
        self._layers_built = getattr(self, "_layers_built", 0) + 1
        return _wrap_layer(ContextDecoderLayer(cfg, number=self._layers_built), cfg)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        output_positions: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """As fairseq's, with the arguments of :meth:`extract_features`, and with ``output_positions``, a boolean mask
        of shape (batch, target length): only the P positions it selects go through the output layer, in the order of
        the batch, and the result is (P, vocabulary)."""
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, **kwargs)
        if output_positions is not None:
            x = x[output_positions]
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[IncrementalState] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
        return_attention: bool = True,
        return_gates: bool = False,
        return_preceding_attention: bool = False,
        **_: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Run the decoder without its output layer.

        Args:
            prev_output_tokens: (batch, target length)
            full_context_alignment: no causal mask (Garg et al. 2019)
            alignment_layer: whose attention is returned, from 0 as in fairseq; default: the last layer's
            alignment_heads: average the attention over this many heads; default: all
            return_attention: without it, attention over the source is computed the faster way, which has no weights
            return_gates: also return the gates
            return_preceding_attention: also return the attention over the preceding sentence

        Returns:
            features, (batch, target length, embed dim), and a dictionary with ``attn``, a list of one (batch, target
            length, source length) or None; ``inner_states``, each layer's input and the last one's output, (target
            length, batch, embed dim); and, if asked for, ``gates`` and ``inter_sentence_gates``: z, (target length,
            batch, embed dim), by the number of its layer from 1 at the bottom, of the layers that ran (LayerDrop), and
            ``preceding_attention``, (heads, batch, target length, preceding length), by the layer as well
        """
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        x, padding_mask = self.embed(prev_output_tokens, incremental_state)
        future_mask = None if incremental_state is not None or full_context_alignment else self.buffered_future_mask(x)

        outputs = self.run_layers(
            x,
            encoder_out,
            prev_output_tokens,
            attention_layer=alignment_layer + 1 if return_attention else None,
            incremental_state=incremental_state,
            self_attn_mask=future_mask,
            self_attn_padding_mask=padding_mask,
            need_preceding_attn=return_preceding_attention,
        )
        inner_states = [x, *(output.x for output in outputs.values())]
        attention = [
            weights[:alignment_heads].float().mean(dim=0).to(x) for weights in _by_layer(outputs, "attention").values()
        ]
        extra: Dict[str, Any] = {"attn": attention or [None], "inner_states": inner_states}
        if return_gates:
            extra["gates"] = _by_layer(outputs, "context_gate")
            extra["inter_sentence_gates"] = _by_layer(outputs, "inter_sentence_gate")
        if return_preceding_attention:
            extra["preceding_attention"] = _by_layer(outputs, "preceding_attention")
        return self.features(inner_states[-1]), extra

    def run_layers(
        self,
        x: Tensor,
        encoder_out: EncoderOut,
        prev_output_tokens: Tensor,
        attention_layer: Optional[int],
        **arguments: Any,
    ) -> Dict[int, LayerOutput]:
        """What each layer returns, by its number from 1 at the bottom, of the layers that run (LayerDrop).

        Args:
            x: the lowest layer's input, (target length, batch, embed dim)
            attention_layer: the number of the layer that also returns its attention over the sentence, or None
            arguments: for each layer alike, see :meth:`ContextDecoderLayer.forward`
        """
        memories = _memories(encoder_out)
        outputs: Dict[int, LayerOutput] = {}
        for layer in self.layers:
            preceding_context = self.random_context(encoder_out, layer.number, prev_output_tokens, x)
            need_attn = layer.number == attention_layer
            output = LayerOutput(
                *layer(x, need_attn=need_attn, preceding_context=preceding_context, **memories, **arguments)
            )
            outputs[layer.number] = output
            x = output.x
        return outputs

    def features(self, x: Tensor) -> Tensor:
        """The features, (batch, target length, output dim), from the uppermost layer's output."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)

    def random_context(
        self, encoder_out: EncoderOut, layer: int, prev_output_tokens: Tensor, x: Tensor
    ) -> Optional[Tensor]:
        """What stands for the context of the preceding sentence in the ablation ``random``, of the shape of x; None
        without it."""
        keys = _first(encoder_out, "sentence_keys")
        if keys is None:
            return None
        end = prev_output_tokens.size(1)
        steps = torch.arange(end - x.size(0), end, device=x.device)  # the last one only in incremental decoding
        return random_context(keys, layer, steps, x.size(-1)).to(x)

    def embed(self, tokens: Tensor, incremental_state: Optional[IncrementalState]) -> Tuple[Tensor, Optional[Tensor]]:
        """Embeddings with positions, (target length, batch, embed dim), and where padding is, (batch, target length),
        or None; of the last token only in incremental decoding."""
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
        last_only = incremental_state is not None
        x = self.embed_scale * embed_words(self.embed_tokens, tokens, self.smoothing, last_only)
        if last_only:
            tokens = tokens[:, -1:]
            positions = positions[:, -1:] if positions is not None else None
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        padding_mask = tokens.eq(self.padding_idx)
        return self.dropout_module(x).transpose(0, 1), padding_mask if padding_mask.any() else None


class ContextTransformerModel(TransformerModelBase):
    """A Transformer for translation whose decoder layers carry the mechanisms that its options name; with all of them
    off it is the plain Transformer."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the architectures' options to the command line. No defaults, which come from each one's own dataclass: a
        flag that an architecture sets would become one that unsets it."""
        gen_parser_from_dataclass(parser, ContextTransformerConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "ContextTransformerModel":
        cfg = transformer_config(cfg)
        model = super().build_model(cfg, task)
        check_task(task, model.required_streams)
        replace_dropout(model)
        return model

    @classmethod
    def build_encoder(cls, cfg: Any, src_dict: Any, embed_tokens: nn.Embedding) -> ContextTransformerEncoder:
        return ContextTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> ContextTransformerDecoder:
        return ContextTransformerDecoder(cfg, tgt_dict, embed_tokens)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        preceding_tokens: Optional[Tensor] = None,
        relation_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """
        Args:
            src_tokens: (batch, source length)
            src_lengths: (batch,)
            prev_output_tokens: (batch, target length)
            preceding_tokens: the preceding sentences, (batch, preceding length), for an inter-sentence gate
            relation_mask: M, (batch, source length, source length), true where a position may see another in the
                relation encoding
            kwargs: for the decoder, as ``return_gates``

        Returns:
            logits, (batch, target length, vocabulary), and the dictionary of the decoder
        """
        encoder_out = self.encoder(
            src_tokens,
            src_lengths,
            return_all_hiddens=return_all_hiddens,
            preceding_tokens=preceding_tokens,
            relation_mask=relation_mask,
        )
        return self.decoder(prev_output_tokens, encoder_out=encoder_out, **kwargs)

    @property
    def gated_layers(self) -> int:
        """How many decoder layers have a context gate."""
        return self.cfg.decoder.layers if self.cfg.mechanisms.context_gate != "none" else 0

    @property
    def required_streams(self) -> Tuple[str, ...]:
        """The side streams that the model's input needs, by name."""
        is_read = {"preceding": bool(inter_sentence_layers(self.cfg)), "relation": encodes_relations(self.cfg)}
        return tuple(name for name, is_required in is_read.items() if is_required)

    @property
    def unread_streams(self) -> Tuple[str, ...]:
        """The side streams that an ablation leaves unread: the options of training may ask for them all the same."""
        return ("relation",) if relation_layers(self.cfg) and not encodes_relations(self.cfg) else ()

    def is_mechanism_parameter(self, name: str) -> bool:
        """Whether a parameter belongs to a mechanism, and so is not in a plain Transformer's checkpoint."""
        parts = (
            "context_gate",
            "inter_sentence_gate",
            "preceding_attn",
            "relation_attn",
            "relation_fusion",
            "smoothing",
        )
        return any(f".{part}." in name for part in parts)

    def starts_as(self, name: str) -> Optional[str]:
        """The parameter that one of a mechanism's own starts as a copy of, in a warm start: attention over the
        preceding sentence, or over the relation encoding, starts as that over the sentence."""
        copy = re.sub(r"\.(preceding|relation)_attn\.", ".encoder_attn.", name)
        return copy if copy != name else None


def _first(encoder_out: EncoderOut, name: str) -> Optional[Tensor]:
    """An entry of the encoder's output, which fairseq wraps in a list that may be empty."""
    entry = encoder_out.get(name)
    return entry[0] if entry else None


def _memories(encoder_out: EncoderOut) -> Dict[str, Optional[Tensor]]:
    """What a decoder layer attends to, by the names of its arguments. Without a relation encoding the ordinary one
    takes its place (Compare Fusion)."""
    names = ("encoder_out", "encoder_padding_mask", "relation_out", "preceding_out", "preceding_padding_mask")
    memories = {name: _first(encoder_out, name) for name in names}
    if memories["relation_out"] is None:
        memories["relation_out"] = memories["encoder_out"]
    return memories


def _by_layer(outputs: Dict[int, LayerOutput], name: str) -> Dict[int, Tensor]:
    """What the layers returned under this name, by the layer's number, of those that returned it."""
    found = {number: getattr(output, name) for number, output in outputs.items()}
    return {number: tensor for number, tensor in found.items() if tensor is not None}


def _wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """What fairseq does to each layer it builds: activation checkpointing, and wrapping for fully sharded training."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


MECHANISMS: Dict[str, Dict[str, Any]] = {
    "context_transformer": {},
    "rcg_transformer": {"context_gate": "interpolate"},
    "fra_transformer": {"relation_fusion": "transform"},
    "isg_transformer": {"inter_sentence_gate": True},
    "car_transformer": {"smoothing": "fcwm"},
}


def _size(embed_dim: int, ffn_embed_dim: int, heads: int, layers: int, **others: Any) -> Dict[str, Any]:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", heads), ("layers", layers))
    }
    return {"encoder_embed_dim": embed_dim, "encoder_ffn_embed_dim": ffn_embed_dim, **sides, **others}


# The sizes of fairseq's transformer, transformer_tiny, transformer_iwslt_de_en and transformer_vaswani_wmt_en_de_big.
SIZES: Dict[str, Dict[str, Any]] = {
    "": {},
    "_tiny": _size(64, 64, heads=2, layers=2),
    "_iwslt": _size(512, 1024, heads=4, layers=6),
    "_big": _size(1024, 4096, heads=16, layers=6, dropout=0.3),
}

register_presets(ContextTransformerModel, ContextTransformerConfig, MECHANISMS, SIZES)

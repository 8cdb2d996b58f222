"""The Transformer with the mechanisms in its decoder layers, and its named architectures."""

from typing import Any, Dict, List, Optional, Tuple

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_ctxgates.compat import EncoderLayer
from fairseq_ctxgates.models.presets import register_presets
from fairseq_ctxgates.models.transformer_config import ContextTransformerConfig, transformer_config
from fairseq_ctxgates.modules.context_of_words import build_smoothing, embed_words
from fairseq_ctxgates.modules.decoder_layer import (
    ContextDecoderLayer,
    IncrementalState,
    LayerOutput,
    inter_sentence_layers,
)
from fairseq_ctxgates.modules.dropout import replace_dropout
from fairseq_ctxgates.modules.inter_sentence_gate import check_task, preceding_input, random_context, sentence_keys

EncoderOut = Dict[str, List[Tensor]]


class ContextTransformerEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder, the same on both stacks, over embeddings that may be smoothed; it also encodes the
    preceding sentence where there is an inter-sentence gate for it."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.smoothing = build_smoothing(
            cfg.mechanisms, "encoder", embed_tokens.embedding_dim, dictionary, self.embed_scale
        )
        self.encodes_preceding = bool(inter_sentence_layers(cfg))
        self.ablation = str(cfg.mechanisms.inter_sentence_ablation)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        return _wrap_layer(EncoderLayer(cfg), cfg)

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
    ) -> EncoderOut:
        """As fairseq's. Where there is an inter-sentence gate, it encodes ``preceding_tokens``, (batch, preceding
        length), as well, and the result also has ``preceding_out``, h_a, (preceding length, batch, embed dim), and
        ``preceding_padding_mask``, (batch, preceding length)."""
        encoder_out: EncoderOut = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        if self.encodes_preceding:
            tokens = preceding_input(preceding_tokens, self.ablation, self.dictionary, self.max_positions())
            preceding = super().forward(tokens)
            encoder_out["preceding_out"] = preceding["encoder_out"]
            encoder_out["preceding_padding_mask"] = preceding["encoder_padding_mask"]
            if self.ablation == "random":
                encoder_out["sentence_keys"] = [sentence_keys(src_tokens, self.padding_idx)]
        return encoder_out

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        reordered: EncoderOut = super().reorder_encoder_out(encoder_out, new_order)
        for name, batch_dim in (("preceding_out", 1), ("preceding_padding_mask", 0), ("sentence_keys", 0)):
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

        Returns:
            features, (batch, target length, embed dim), and a dictionary with ``attn``, a list of one (batch, target
            length, source length) or None; ``inner_states``, each layer's input and the last one's output, (target
            length, batch, embed dim); and, if asked for, ``gates`` and ``inter_sentence_gates``: z, (target length,
            batch, embed dim), by the number of its layer from 1 at the bottom, of the layers that ran (LayerDrop)
        """
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        x, padding_mask = self.embed(prev_output_tokens, incremental_state)
        future_mask = None if incremental_state is not None or full_context_alignment else self.buffered_future_mask(x)

        attention, inner_states = None, [x]
        gates: Dict[str, Dict[int, Tensor]] = {"gates": {}, "inter_sentence_gates": {}}
        for layer in self.layers:
            output = LayerOutput(
                *layer(
                    x,
                    encoder_out["encoder_out"][0],
                    _first(encoder_out, "encoder_padding_mask"),
                    incremental_state,
                    self_attn_mask=future_mask,
                    self_attn_padding_mask=padding_mask,
                    need_attn=return_attention and layer.number - 1 == alignment_layer,
                    preceding_out=_first(encoder_out, "preceding_out"),
                    preceding_padding_mask=_first(encoder_out, "preceding_padding_mask"),
                    preceding_context=self.random_context(encoder_out, layer.number, prev_output_tokens, x),
                )
            )
            x = output.x
            inner_states.append(x)
            if output.attention is not None:
                attention = output.attention[:alignment_heads].float().mean(dim=0).to(x)
            if output.context_gate is not None:
                gates["gates"][layer.number] = output.context_gate
            if output.inter_sentence_gate is not None:
                gates["inter_sentence_gates"][layer.number] = output.inter_sentence_gate

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        extra: Dict[str, Any] = {"attn": [attention], "inner_states": inner_states}
        if return_gates:
            extra.update(gates)
        return x, extra

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
        if inter_sentence_layers(cfg):
            check_task(task)
        model = super().build_model(cfg, task)
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
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """
        Args:
            src_tokens: (batch, source length)
            src_lengths: (batch,)
            prev_output_tokens: (batch, target length)
            preceding_tokens: the preceding sentences, (batch, preceding length), for an inter-sentence gate
            kwargs: for the decoder, as ``return_gates``

        Returns:
            logits, (batch, target length, vocabulary), and the dictionary of the decoder
        """
        encoder_out = self.encoder(
            src_tokens, src_lengths, return_all_hiddens=return_all_hiddens, preceding_tokens=preceding_tokens
        )
        return self.decoder(prev_output_tokens, encoder_out=encoder_out, **kwargs)

    @property
    def gated_layers(self) -> int:
        """How many decoder layers have a context gate."""
        return self.cfg.decoder.layers if self.cfg.mechanisms.context_gate != "none" else 0

    @property
    def required_streams(self) -> Tuple[str, ...]:
        """The side streams that the model's input needs, by name."""
        return ("preceding",) if inter_sentence_layers(self.cfg) else ()

    def is_mechanism_parameter(self, name: str) -> bool:
        """Whether a parameter belongs to a mechanism, and so is not in a plain Transformer's checkpoint."""
        parts = ("context_gate", "inter_sentence_gate", "preceding_attn", "smoothing")
        return any(f".{part}." in name for part in parts)

    def starts_as(self, name: str) -> Optional[str]:
        """The parameter that one of a mechanism's own starts as a copy of, in a warm start: attention over the
        preceding sentence starts as that over the sentence."""
        return name.replace(".preceding_attn.", ".encoder_attn.") if ".preceding_attn." in name else None


def _first(encoder_out: EncoderOut, name: str) -> Optional[Tensor]:
    """An entry of the encoder's output, which fairseq wraps in a list that may be empty."""
    entry = encoder_out.get(name)
    return entry[0] if entry else None


def _wrap_layer(layer: nn.Module, cfg: Any) -> nn.Module:
    """What fairseq does to each layer it builds: activation checkpointing, and wrapping for fully sharded training."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


MECHANISMS: Dict[str, Dict[str, Any]] = {
    "context_transformer": {},
    "rcg_transformer": {"context_gate": "interpolate"},
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

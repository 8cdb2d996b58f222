"""The Transformer with the mechanisms' parts in its decoder layers, and its named architectures."""

from __future__ import annotations

from types import MappingProxyType
from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.modules import MultiheadAttention
from fairseq.tasks import FairseqTask
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_ctxgates.compat import (
    EncoderLayer,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
    checkpoint_wrapper,
    fsdp_wrap,
)
from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import TRANSFORMER, Defaults, EncoderInput, Mechanism
from fairseq_ctxgates.models.context_model import ContextDecoder, ContextModel, Extra
from fairseq_ctxgates.models.decoder_layer import ContextDecoderLayer
from fairseq_ctxgates.models.mechanism_parts import (
    EncoderOut,
    added_tensors,
    arranged_encodings,
    embedding_parts,
    encoder_additions,
    encoding_parts,
    is_shared_by_beams,
    single_part,
)
from fairseq_ctxgates.models.presets import register_presets
from fairseq_ctxgates.models.transformer_config import ContextTransformerConfig, NestedConfig, transformer_config
from fairseq_ctxgates.modules.attention import IncrementalState, run_projection_modules
from fairseq_ctxgates.modules.beams import sentences_of_beams
from fairseq_ctxgates.modules.dropout import replace_dropout
from fairseq_ctxgates.modules.linear import onednn_is_faster, replace_linear
from fairseq_ctxgates.parts import embed_words

# What fairseq's encoder returns; mechanisms add to it.
TRANSFORMER_ENCODER_OUT = frozenset(
    "encoder_out encoder_padding_mask encoder_embedding encoder_states fc_results src_tokens src_lengths".split()
)

# Entries that the beams of a sentence share, beside encodings and padding masks.
SHARED = frozenset({"encoder_embedding", "encoder_states"})


class ContextEncoderLayer(EncoderLayer):
    """fairseq's Transformer encoder layer, whose self-attention may be of a class that a mechanism asks for."""

    def build_self_attention(self, embed_dim: int, cfg: NestedConfig) -> MultiheadAttention:
        """Attention of width ``embed_dim``, with the heads and dropout of the configuration."""
        attention = single_part(
            [mechanism.encoder_attention() for mechanism in cfg.mechanisms], default=MultiheadAttention
        )
        return attention(
            embed_dim,
            cfg.encoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )


class ContextTransformerEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder, the same for all versions of fairseq, over embeddings that mechanisms may change.
    It also encodes what the mechanisms ask for: the source under further masks, and further sentences."""

    def __init__(self, cfg: NestedConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.mechanisms: Sequence[Mechanism] = cfg.mechanisms
        self.attention_heads = cfg.encoder.attention_heads
        self.layers_run_once = bool(cfg.checkpoint_activations or cfg.quant_noise.pq)
        self.embedding_parts = embedding_parts(cfg.mechanisms, "encoder", embed_tokens, dictionary, self.embed_scale)
        self.encoding_parts = encoding_parts(cfg.mechanisms, cfg.encoder.embed_dim)

    def build_encoder_layer(self, cfg: NestedConfig) -> nn.Module:
        return _wrap_layer(ContextEncoderLayer(cfg), cfg)

    def forward_embedding(self, src_tokens: Tensor, token_embedding: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        if token_embedding is None:
            token_embedding = embed_words(self.embed_tokens, src_tokens, self.embedding_parts.in_order())
        embedded: Tuple[Tensor, Tensor] = super().forward_embedding(src_tokens, token_embedding)
        return embedded

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
        **inputs: Tensor,
    ) -> EncoderOut:
        """As fairseq's, except that no mechanism changes ``token_embeddings`` that are given; ``inputs`` are what side
        streams added to the batch.

        The result also has what mechanisms added: for each mask under which the source was encoded, ``<name>_out``,
        (source length, batch, embed dim); for further sentences, ``<name>_out``, (their length, batch, embed dim), and
        ``<name>_padding_mask``, (batch, their length); and other tensors as they are."""
        encoder_input = EncoderInput(src_tokens, inputs, self.dictionary)
        masks, sentences, tensors = encoder_additions(self.mechanisms, encoder_input, TRANSFORMER_ENCODER_OUT)
        batches = [tokens for further in sentences.values() for tokens in further.batches(self.padding_idx)]
        if batches and self.training and self.layers_run_once and token_embeddings is None:
            encoder_out, encoded = self.encode_as_one_batch(src_tokens, batches, masks, return_all_hiddens)
        else:
            is_padded, *are_padded = self.are_padded([src_tokens, *batches])
            encoder_out = self.encode(src_tokens, is_padded, masks, return_all_hiddens, token_embeddings)
            encoded = [self.encode(tokens, padded)["encoder_out"][0] for tokens, padded in zip(batches, are_padded)]
        encodings = [states.transpose(0, 1) for states in encoded]
        for name, encoding, mask in arranged_encodings(sentences, encodings, self.encoding_parts, self.padding_idx):
            encoder_out[f"{name}_out"] = [encoding.transpose(0, 1).contiguous()]
            encoder_out[f"{name}_padding_mask"] = [mask]
        return {**encoder_out, **tensors}

    def encode_as_one_batch(
        self, src_tokens: Tensor, batches: Sequence[Tensor], masks: Mapping[str, Tensor], return_all_hiddens: bool
    ) -> Tuple[EncoderOut, List[Tensor]]:
        """:meth:`encode` the source and the batches of further sentences, padded to one length, so that each layer runs
        once. With activation checkpointing, torch's DistributedDataParallel does not allow a layer to run again; with
        ``--quant-noise-pq``, fairseq would add the noise of the second run to that of the first.

        Returns:
            what :meth:`encode` returns for the source; and, for each batch, (its length, sentences, embed dim)
        """
        rows = [len(tokens) for tokens in (src_tokens, *batches)]
        length = max(tokens.size(1) for tokens in (src_tokens, *batches))
        padded = [
            pad(tokens, (0, length - tokens.size(1)), value=self.padding_idx) for tokens in (src_tokens, *batches)
        ]
        wider = length - src_tokens.size(1)
        # Further sentences see all of their words under a mask, too; the result is not read.
        masks = {name: pad(mask, (0, wider, 0, wider, 0, sum(rows[1:])), value=True) for name, mask in masks.items()}
        encoded = self.encode(torch.cat(padded), True, masks, return_all_hiddens)
        states = encoded["encoder_out"][0].split(rows, dim=1)
        sentences, words = src_tokens.shape
        source = {
            name: [x[:words, :sentences] if _is_time_first(name) else x[:sentences, :words] for x in tensors]
            for name, tensors in encoded.items()
        }
        return source, [part[: tokens.size(1)] for part, tokens in zip(states[1:], batches)]

    def are_padded(self, batches: Sequence[Tensor]) -> List[bool]:
        """For each batch of tokens, whether it has padding. The host waits for the device here, once."""
        found: List[bool] = torch.stack([tokens.eq(self.padding_idx).any() for tokens in batches]).tolist()
        return found

    def encode(
        self,
        src_tokens: Tensor,
        is_padded: bool,
        masks: Mapping[str, Tensor] = MappingProxyType({}),
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
    ) -> EncoderOut:
        """Encode sentences, and once more under each mask, by the same layers.

        Args:
            src_tokens: (batch, source length)
            is_padded: whether they have padding; to find out, fairseq's method makes the host wait in every layer
            masks: by name, (batch, source length, source length), true where a position may see another

        Returns:
            what fairseq's encoder returns, with ``encoder_out``, (source length, batch, embed dim), first; and for each
            mask, ``<name>_out`` of the same shape
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        x = x.masked_fill(padding_mask.unsqueeze(-1), 0).transpose(0, 1)
        x, states = self.run_layers(x, padding_mask if is_padded else None, list(masks.values()), return_all_hiddens)
        # Contiguous, or every product of a decoder layer would copy them.
        sentence, *masked = (part.contiguous() for part in x.chunk(1 + len(masks), dim=1))
        return {
            "encoder_out": [sentence],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": [state[:, : len(src_tokens)] for state in states],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~padding_mask).sum(dim=1, keepdim=True, dtype=torch.int32)],
            **{f"{name}_out": [encoding] for name, encoding in zip(masks, masked)},
        }

    def run_layers(
        self, x: Tensor, padding_mask: Optional[Tensor], masks: Sequence[Tensor], return_all_hiddens: bool
    ) -> Tuple[Tensor, List[Tensor]]:
        """Run the layers over sentences, and once more under each mask, as one batch.

        Args:
            x: the lowest layer's input, (source length, batch, embed dim)
            padding_mask: (batch, source length), or None without padding
            masks: (batch, source length, source length) each, true where a position may see another

        Returns:
            the encodings without a mask and then under each, (source length, (1 + masks) · batch, embed dim), and, if
            wanted, each layer's input and the last one's output, of the same shape
        """
        attention_mask = None
        if masks:
            times = 1 + len(masks)
            x = x.repeat(1, times, 1)
            padding_mask = None if padding_mask is None else padding_mask.repeat(times, 1)
            attention_mask = hidden_positions(masks, self.attention_heads)
        states = [x] if return_all_hiddens else []
        for layer in self.layers:
            x = layer(x, padding_mask, attention_mask)
            if return_all_hiddens:
                states.append(x)
        return x if self.layer_norm is None else self.layer_norm(x), states

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Reorder the rows as fairseq's beam search does; other orders are not defined. Beams of one sentence share its
        encodings."""
        sentence_count, row_count = encoder_out["encoder_out"][0].size(1), len(encoder_out["src_lengths"][0])
        sentences = sentences_of_beams(new_order, sentence_count, row_count)
        reordered = {}
        for name, tensors in encoder_out.items():
            is_shared = name in SHARED or is_shared_by_beams(name)
            chosen = sentences if is_shared else new_order
            batch = 1 if _is_time_first(name) else 0
            reordered[name] = tensors if chosen is None else [x.index_select(batch, chosen) for x in tensors]
        return reordered


def _is_time_first(name: str) -> bool:
    """Whether an entry of the encoder's output is (length, batch, ...) and not (batch, length, ...)."""
    return name.endswith("_out") or name == "encoder_states"


def hidden_positions(masks: Sequence[Tensor], heads: int) -> Tensor:
    """The attention mask of an encoder that reads the source several times as one batch: first without a mask, then
    under each mask.

    Args:
        masks: (batch, length, length) each, true where a position may see another
        heads: the number of attention heads

    Returns:
        ((1 + masks) · batch · heads, length, length), bool, true where a position may not see another
    """
    hidden = torch.cat([torch.zeros_like(masks[0]), *(~mask for mask in masks)])
    return hidden.repeat_interleave(heads, dim=0)


class LayerResults(NamedTuple):
    """The results of the decoder's layers.

    Attributes:
        inner_states: each layer's input and the last one's output, (target length, batch, embed dim)
        attention: over the sentence, (heads, batch, target length, source length), of the layer that was asked for
        returned: what parts returned, by name and by the layer's number
    """

    inner_states: List[Tensor]
    attention: Optional[Tensor]
    returned: Dict[str, Dict[int, Tensor]]


class ContextTransformerDecoder(ContextDecoder, TransformerDecoderBase):
    """fairseq's Transformer decoder over :class:`ContextDecoderLayer` and embeddings that mechanisms may change. It has
    its own short loop over the layers, because fairseq's loop discards what parts return."""

    def __init__(self, cfg: NestedConfig, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.embedding_parts = embedding_parts(cfg.mechanisms, "decoder", embed_tokens, dictionary, self.embed_scale)
        # The layer whose attention is returned, from 0, and the number of its heads that are averaged (None: all).
        self.alignment_layer = self.num_layers - 1
        self.alignment_heads: Optional[int] = None
        # By index, because iterating over a list with LayerDrop leaves layers out.
        layers = [self.layers[place] for place in range(len(self.layers))]
        self.returnable = {layer.number: layer.returnable for layer in layers}
        is_in_some = len({(*layer.source_parts, type(layer.connection)) for layer in layers}) > 1
        if cfg.decoder.layers_to_keep and (is_in_some or any(mechanism.names_layers for mechanism in cfg.mechanisms)):
            chosen = ", ".join(as_flag(name) for name in (m.layers_option for m in cfg.mechanisms) if name is not None)
            raise UserError(
                f"--decoder-layers-to-keep renumbers the layers, and a mechanism is in layers of chosen numbers "
                f"({chosen}; by default some mechanisms are in the top layer): choose all, or keep all"
            )

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """As fairseq's, which however adds shared embeddings as the weight of an output layer also where an adaptive
        softmax stands in its place, so that such a model of its own cannot be loaded."""
        upgraded: Dict[str, Tensor] = super().upgrade_state_dict_named(state_dict, name)
        if self.adaptive_softmax is not None:
            upgraded.pop(f"{name}.output_projection.weight", None)
        return upgraded

    def build_decoder_layer(self, cfg: NestedConfig, no_encoder_attn: bool = False) -> nn.Module:
        # TransformerDecoderBase builds its layers in order, so the attribute counts them.
        self._layers_built = getattr(self, "_layers_built", 0) + 1
        return _wrap_layer(ContextDecoderLayer(cfg, number=self._layers_built), cfg)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[IncrementalState] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
        return_attention: bool = True,
        returns: Collection[str] = (),
        **_: object,
    ) -> Tuple[Tensor, Extra]:
        """Run the decoder without its output layer.

        Args:
            full_context_alignment: no causal mask (Garg et al. 2019)
            alignment_layer, alignment_heads: the layer whose attention is returned, from 0, and the number of its heads
                that are averaged; default: the decoder's
            return_attention: if false, attention over the source is computed the faster way, which has no weights
            returns: the names of the gates and attention weights that parts return

        Returns:
            features, (batch, target length, embed dim), and a dictionary with ``attn``, a list of one (batch, target
            length, source length) or None; ``inner_states``, see :class:`LayerResults`; and for each name in
            ``returns`` the tensors by the number of their layer, from 1 at the bottom, for the layers that LayerDrop
            left: gates (target length, batch, embed dim), attention (heads, batch, target length, length)
        """
        if alignment_layer is None:
            alignment_layer = self.alignment_layer
        if alignment_heads is None:
            alignment_heads = self.alignment_heads
        x, padding_mask = self.embed(prev_output_tokens, incremental_state)
        future_mask = None if incremental_state is not None or full_context_alignment else self.buffered_future_mask(x)
        results = self.run_layers(
            x,
            encoder_out,
            attention_layer=alignment_layer + 1 if return_attention else None,
            incremental_state=incremental_state,
            self_attn_mask=future_mask,
            self_attn_padding_mask=padding_mask,
            first_step=prev_output_tokens.size(1) - x.size(0),
            returns=tuple(returns),
        )
        weights = results.attention
        attention = None if weights is None else weights[:alignment_heads].float().mean(dim=0).to(x)
        extra = {"attn": [attention], "inner_states": results.inner_states, **results.returned}
        return self.features(results.inner_states[-1]), extra

    def run_layers(
        self,
        x: Tensor,
        encoder_out: EncoderOut,
        attention_layer: Optional[int],
        returns: Tuple[str, ...],
        **arguments: object,
    ) -> LayerResults:
        """Run the layers, or those that LayerDrop leaves.

        Args:
            x: the lowest layer's input, (target length, batch, embed dim)
            attention_layer: the number of the layer that also returns its attention over the sentence, or None
            returns: the names of gates and attention weights to return
            arguments: the same for each layer, see :meth:`ContextDecoderLayer.forward`
        """
        (padding_mask,) = encoder_out["encoder_padding_mask"]
        arguments.update(added_tensors(encoder_out, TRANSFORMER_ENCODER_OUT), returns=returns)
        inner_states, attention = [x], None
        returned: Dict[str, Dict[int, Tensor]] = {name: {} for name in returns}
        for layer in self.layers:
            x, weights, *tensors = layer(
                x,
                encoder_out["encoder_out"][0],
                padding_mask,
                need_attn=layer.number == attention_layer,
                **arguments,
            )
            inner_states.append(x)
            attention = attention if weights is None else weights
            for name, tensor in zip(layer.returnable, tensors):
                if tensor is not None:
                    returned[name][layer.number] = tensor
        return LayerResults(inner_states, attention, returned)

    def features(self, x: Tensor) -> Tensor:
        """The features, (batch, target length, output dim), from the uppermost layer's output."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)

    def embed(self, tokens: Tensor, incremental_state: Optional[IncrementalState]) -> Tuple[Tensor, Optional[Tensor]]:
        """Embeddings with positions, (target length, batch, embed dim), and the padding mask, (batch, target length),
        or None; of the last token only in incremental decoding."""
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
        last_only = incremental_state is not None
        words = embed_words(self.embed_tokens, tokens, self.embedding_parts.in_order(), last_only)
        x = self.embed_scale * words
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


class ContextTransformerModel(ContextModel, TransformerModelBase):
    """A Transformer for translation whose decoder layers have the parts of the mechanisms that its options turn on;
    with all of them off it is the plain Transformer."""

    Config = ContextTransformerConfig

    def __init__(
        self, cfg: NestedConfig, encoder: ContextTransformerEncoder, decoder: ContextTransformerDecoder
    ) -> None:
        super().__init__(cfg, encoder, decoder)
        self.mechanisms, self.unread_options = cfg.mechanisms, cfg.unread_options

    @classmethod
    def build_model(cls, cfg: FairseqDataclass, task: FairseqTask) -> ContextTransformerModel:
        """Build a model for the task's dictionaries.

        Raises:
            UserError: options contradict each other, would do nothing, or contradict the task.
        """
        config = transformer_config(cfg)
        model = super().build_model(config, task)
        model.check_task(task)
        model.pending_warm_start = cfg.warm_start
        replace_dropout(model)
        use_onednn(model, config)
        return model

    @classmethod
    def build_encoder(
        cls, cfg: NestedConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> ContextTransformerEncoder:
        return ContextTransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: NestedConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> ContextTransformerDecoder:
        return ContextTransformerDecoder(cfg, tgt_dict, embed_tokens)


def use_onednn(model: ContextTransformerModel, config: NestedConfig) -> None:
    """Let a CPU compute large products by oneDNN if that is faster, and keep their quantization noise."""
    noise = config.quant_noise
    if not noise.scalar:  # fairseq adds it to linear layers of torch's own class
        replace_linear(model)
    is_cpu_alone = not torch.cuda.is_available()  # a GPU is faster with torch's own attention
    if is_cpu_alone and onednn_is_faster() and not noise.scalar and not noise.pq:  # torch's own attention draws none
        run_projection_modules(model.decoder)
        # A source that is encoded under masks has a mask for each sentence.
        if all(type(mechanism).source_masks is Mechanism.source_masks for mechanism in model.mechanisms):
            run_projection_modules(model.encoder)


def _wrap_layer(layer: nn.Module, cfg: NestedConfig) -> nn.Module:
    """What fairseq does to each layer it builds: activation checkpointing, and wrapping for fully sharded training."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def _size(embed_dim: int, ffn_embed_dim: int, heads: int, layers: int, **others: object) -> Defaults:
    return {
        "encoder_embed_dim": embed_dim,
        "encoder_ffn_embed_dim": ffn_embed_dim,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_layers": layers,
        "decoder_layers": layers,
        **others,
    }


# The sizes of fairseq's transformer, transformer_tiny, transformer_iwslt_de_en and transformer_vaswani_wmt_en_de_big.
SIZES: Dict[str, Defaults] = {
    "": {},
    "_tiny": _size(64, 64, heads=2, layers=2),
    "_iwslt": _size(512, 1024, heads=4, layers=6),
    "_big": _size(1024, 4096, heads=16, layers=6, dropout=0.3),
}

register_presets(ContextTransformerModel, TRANSFORMER, "context_transformer", SIZES)

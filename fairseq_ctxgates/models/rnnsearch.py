"""RNNSearch, the attentional GRU model (Bahdanau et al. 2015, *Neural Machine Translation by Jointly Learning to Align
and Translate*), with the mechanisms in its decoder, and its named architectures."""

from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor, nn

from fairseq_ctxgates.context_gates.recurrent_gates import RecurrentContextGateConfig
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.gate import (
    InterSentenceGateConfig,
    preceding_input,
    random_context,
    sentence_keys,
)
from fairseq_ctxgates.layer_list import parse_layers
from fairseq_ctxgates.models.presets import check_task, register_presets
from fairseq_ctxgates.models.recurrent_decoder_cell import Annotations, RecurrentDecoderCell, Step
from fairseq_ctxgates.models.warm_start import WarmStartConfig
from fairseq_ctxgates.modules.additive_attention import sentences_of_rows, weighted_sum
from fairseq_ctxgates.modules.deep_output import DeepOutput
from fairseq_ctxgates.modules.dropout import Dropout
from fairseq_ctxgates.modules.gated_recurrent_unit import BidirectionalGRU
from fairseq_ctxgates.modules.linear import replace_linear
from fairseq_ctxgates.smoothing.context_aware_smoothing import SmoothingConfig, build_smoothing, embed_words

MECHANISM_PARTS = ("context_gate", "inter_sentence_gate", "preceding_attention", "smoothing")

EncoderOut = Dict[str, List[Tensor]]
IncrementalState = Dict[str, Dict[str, Any]]


@dataclass
class RNNSearchConfig(WarmStartConfig, SmoothingConfig, InterSentenceGateConfig, RecurrentContextGateConfig):
    """The model's options. Sizes are those of the papers."""

    encoder_embed_dim: int = field(default=620, metadata={"help": "width of the source embeddings"})
    encoder_hidden_size: int = field(
        default=1000, metadata={"help": "width of the encoder's states, in each of its two directions"}
    )
    decoder_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width of the target embeddings (default: that of --encoder-embed-dim)"}
    )
    decoder_hidden_size: Optional[int] = field(
        default=None, metadata={"help": "width of the decoder's state (default: that of --encoder-hidden-size)"}
    )
    decoder_output_dim: Optional[int] = field(
        default=None,
        metadata={
            "help": "width of the maxout layer before the output layer (default: half of --decoder-hidden-size; that "
            "of --decoder-embed-dim where the output layer shares the embeddings)"
        },
    )
    feedback_attention: bool = field(
        default=False,
        metadata={
            "help": "attend with a state that has read the last word: s' = GRU(s, y), attention with s', then "
            "GRU(s', c) (the baseline of Kuang and Xiong 2018)"
        },
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout probability where no other is given"})
    embedding_dropout: Optional[float] = field(
        default=None, metadata={"help": "dropout probability of embeddings (default: that of --dropout)"}
    )
    hidden_dropout: Optional[float] = field(
        default=None,
        metadata={
            "help": "dropout probability of the encoder's states, and of the decoder's where a word is predicted from "
            "them (default: that of --dropout)"
        },
    )
    output_dropout: Optional[float] = field(
        default=None, metadata={"help": "dropout probability before the output layer (default: that of --dropout)"}
    )
    share_decoder_input_output_embed: bool = field(
        default=False, metadata={"help": "one matrix for target embeddings and output layer"}
    )
    share_all_embeddings: bool = field(
        default=False,
        metadata={"help": "one matrix for source and target embeddings and output layer (needs a joined dictionary)"},
    )
    max_source_positions: int = field(default=1024, metadata={"help": "maximum number of tokens in the source"})
    max_target_positions: int = field(default=1024, metadata={"help": "maximum number of tokens in the target"})


class RNNSearchEncoder(FairseqEncoder):
    """Embeddings and one bidirectional GRU. The annotation h_j of a word is [forward state; backward state].

    Args:
        cfg: the model's options
        dictionary: the source's
        embed_tokens: its embeddings
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.max_source_positions = cfg.max_source_positions
        self.encodes_preceding = cfg.inter_sentence_gate
        self.ablation = str(cfg.inter_sentence_ablation)
        self.hidden_size = cfg.encoder_hidden_size
        self.embed_tokens = embed_tokens
        self.smoothing = build_smoothing(cfg, "encoder", embed_tokens.embedding_dim, dictionary)
        self.gru = BidirectionalGRU(embed_tokens.embedding_dim, self.hidden_size)
        self.embedding_dropout = _dropout(cfg, "embedding", self)
        self.hidden_dropout = _dropout(cfg, "hidden", self)

    def forward(
        self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None, preceding_tokens: Optional[Tensor] = None
    ) -> EncoderOut:
        """
        Args:
            src_tokens: (batch, source length), padded on either side
            src_lengths: not needed
            preceding_tokens: the preceding sentences, (batch, preceding length), for an inter-sentence gate

        Returns:
            a dictionary of lists of one tensor: ``encoder_out``, h_b, (sentences, source length, 2 · hidden size), and
            ``encoder_padding_mask``, (sentences, source length); the same of the preceding sentences, ``preceding_out``
            and ``preceding_padding_mask``; ``first_backward``, the backward state of each source's first word, (rows,
            hidden size); and for an ablation ``sentence_keys``, (rows,). There is a row for each sentence until
            :meth:`reorder_encoder_out` makes more.
        """
        sentences, encoder_out = [src_tokens], {}
        if self.encodes_preceding:
            preceding = preceding_input(preceding_tokens, self.ablation, self.dictionary, self.max_source_positions)
            if self.ablation == "random":
                encoder_out["sentence_keys"] = [sentence_keys(src_tokens, self.padding_idx)]
            else:
                sentences.append(preceding)
        states, first = self.encode(sentences)
        for name, tokens, annotations in zip(("encoder", "preceding"), sentences, states):
            encoder_out[f"{name}_out"] = [annotations]
            encoder_out[f"{name}_padding_mask"] = [tokens.eq(self.padding_idx)]
        encoder_out["first_backward"] = [first[: len(src_tokens), self.hidden_size :]]
        return encoder_out

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings, (batch, length, embed dim), of tokens (batch, length)."""
        embedded: Tensor = self.embedding_dropout(embed_words(self.embed_tokens, tokens, self.smoothing))
        return embedded

    def encode(self, sentences: Sequence[Tensor]) -> Tuple[List[Tensor], Tensor]:
        """Encode several batches of sentences at once.

        Args:
            sentences: tokens, each (its batch, its length)

        Returns:
            their annotations, each (its batch, its length, 2 · hidden size), zero at padding, and those of their first
            words, (sum of the batches, 2 · hidden size), before dropout
        """
        embedded = torch.cat([self.embed(tokens).flatten(0, 1) for tokens in sentences])
        order, batch_sizes, rows = pack(sentences, self.padding_idx)
        packed = self.gru.states(embedded.index_select(0, order), batch_sizes)
        states = packed.new_zeros(len(embedded), packed.size(-1)).index_copy(0, order, self.hidden_dropout(packed))
        parts = states.split([tokens.numel() for tokens in sentences])
        return [part.view(*tokens.shape, -1) for part, tokens in zip(parts, sentences)], packed[rows]

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Reorder the rows, as a beam search asks for. Beams of one sentence share its annotations."""
        annotations, rows = encoder_out["encoder_out"][0], encoder_out["first_backward"][0]
        sentences = sentences_of_rows(new_order, len(annotations), len(rows))
        reordered = {}
        for name, tensors in encoder_out.items():
            chosen = new_order if name in ("first_backward", "sentence_keys") else sentences
            reordered[name] = tensors if chosen is None else [tensor.index_select(0, chosen) for tensor in tensors]
        return reordered

    def max_positions(self) -> int:
        return int(self.max_source_positions)


def pack(sentences: Sequence[Tensor], padding_idx: int) -> Tuple[Tensor, Tensor, Tensor]:
    """How a recurrent network reads sentences of several lengths, padded on either side, without their padding.

    Args:
        sentences: tokens, each (its batch, its length); together R rows and N tokens that are not padding

    Returns:
        where the tokens are in the flattened sentences, in the order of a ``PackedSequence`` (all first words, all
        second words, and so on, those of the longest sentence first), (N,); how many first, second, ... words there
        are, (longest length,), on the CPU; and where each row's first word is in that order, (R,)
    """
    is_token = [tokens.ne(padding_idx) for tokens in sentences]
    lengths = torch.cat([tokens.sum(dim=1) for tokens in is_token])
    rows = torch.empty_like(lengths)
    rows[lengths.argsort(descending=True)] = torch.arange(len(lengths), device=lengths.device)
    rows_of = rows.split([len(tokens) for tokens in is_token])
    places = [(tokens.cumsum(dim=1) - 1) * len(rows) + row.unsqueeze(1) for tokens, row in zip(is_token, rows_of)]
    where = torch.cat([tokens.flatten() for tokens in is_token]).nonzero().squeeze(1)
    order = where[torch.cat([place.flatten() for place in places])[where].argsort()]
    word_numbers = torch.arange(int(lengths.max()), device=lengths.device)
    return order, lengths.unsqueeze(1).gt(word_numbers).sum(dim=0).cpu(), rows


class RNNSearchDecoder(FairseqIncrementalDecoder):
    """The recurrence of :class:`RecurrentDecoderCell` and, for all steps at once, a maxout and an output layer.

    It starts from tanh(W_s h), h the backward state of the source's first word. It has one layer, number 1 for what is
    returned by layer.

    Args:
        cfg: the model's options
        dictionary: the target's
        embed_tokens: its embeddings
        context_dim: width of the annotations
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Embedding, context_dim: int) -> None:
        super().__init__(dictionary)
        self.max_target_positions = cfg.max_target_positions
        self.embed_tokens = embed_tokens
        word_dim, state_dim = embed_tokens.embedding_dim, cfg.decoder_hidden_size
        self.smoothing = build_smoothing(cfg, "decoder", word_dim, dictionary)
        self.init_proj = nn.Linear(cfg.encoder_hidden_size, state_dim, bias=False)  # W_s
        nn.init.xavier_uniform_(self.init_proj.weight)
        self.cell = RecurrentDecoderCell(cfg, word_dim, state_dim, context_dim)
        self.deep_output = DeepOutput(state_dim, word_dim, context_dim, cfg.decoder_output_dim)
        self.output_projection = nn.Linear(cfg.decoder_output_dim, len(dictionary), bias=False)  # W_o
        if cfg.share_decoder_input_output_embed:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=cfg.decoder_output_dim**-0.5)
        self.embedding_dropout = _dropout(cfg, "embedding", self)
        self.hidden_dropout = _dropout(cfg, "hidden", self)
        self.output_dropout = _dropout(cfg, "output", self)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        output_positions: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """
        Args:
            prev_output_tokens: (batch, target length); with an incremental state, only the last one is decoded
            encoder_out: what the encoder returned
            features_only: leave the output layer out
            output_positions: a mask, (batch, target length): only the P positions it selects go through the output
                layer, in the order of the batch
            kwargs: for :meth:`extract_features`

        Returns:
            logits, (batch, target length, vocabulary) or (P, vocabulary), and the dictionary of
            :meth:`extract_features`
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, **kwargs)
        if output_positions is not None:
            x = x[output_positions]
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[IncrementalState] = None,
        return_attention: bool = True,
        return_gates: bool = False,
        return_preceding_attention: bool = False,
        **_: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """Run the decoder without its output layer.

        Returns:
            features, (batch, target length, output dim), and a dictionary with ``attn``, a list of one (batch, target
            length, source length) or None; and, if asked for, ``gates``: the weight of the source by the context gate,
            (target length, batch, hidden size), and ``inter_sentence_gates``: z, (target length, batch, context dim),
            each by the number of its layer, 1; and, if asked for, ``preceding_attention``, (heads: 1, batch, target
            length, preceding length), by the layer as well
        """
        words = self.embed(prev_output_tokens, incremental_state)
        cached = self.get_incremental_state(incremental_state, "decoder") or self.start(encoder_out)
        steps = self.run_steps(words, self.random_contexts(encoder_out, prev_output_tokens, words), cached)
        states, attention, context_gates, inter_sentence_gates, preceding_attention = zip(*steps)
        self.set_incremental_state(incremental_state, "decoder", {**cached, "state": states[-1]})

        weights = torch.stack(attention, dim=1)
        context_terms = weighted_sum(weights, cached["output_terms"])
        features = self.deep_output(self.hidden_dropout(torch.stack(states, dim=1)), words, context_terms)
        extra: Dict[str, Any] = {"attn": [weights if return_attention else None]}
        if return_gates:
            for name, gates in (("gates", context_gates), ("inter_sentence_gates", inter_sentence_gates)):
                extra[name] = {} if gates[0] is None else {1: torch.stack(gates)}
        if return_preceding_attention:
            is_there = preceding_attention[0] is not None
            extra["preceding_attention"] = {1: torch.stack(preceding_attention, dim=1)[None]} if is_there else {}
        return self.output_dropout(features), extra

    def embed(self, tokens: Tensor, incremental_state: Optional[IncrementalState]) -> Tensor:
        """Embeddings, (batch, target length, embed dim), of tokens (batch, target length); of the last one only in
        incremental decoding."""
        words = embed_words(self.embed_tokens, tokens, self.smoothing, last_only=incremental_state is not None)
        embedded: Tensor = self.embedding_dropout(words)
        return embedded

    def start(self, encoder_out: EncoderOut) -> Dict[str, Any]:
        """s_0, and all that depends on the annotations alone."""
        sentence = _annotations(encoder_out, "encoder")
        preceding = _annotations(encoder_out, "preceding") if "preceding_out" in encoder_out else None
        return {
            "state": torch.tanh(self.init_proj(encoder_out["first_backward"][0])),
            "memories": self.cell.read(sentence, preceding),
            "output_terms": self.deep_output.context_proj(sentence.states),
        }

    def run_steps(self, words: Tensor, preceding_contexts: Optional[Tensor], cached: Dict[str, Any]) -> List[Step]:
        """The recurrence over words (batch, target length, embed dim)."""
        steps, state = [], cached["state"]
        for given in self.cell.inputs(words.transpose(0, 1), preceding_contexts):
            steps.append(self.cell(state, given, cached["memories"]))
            state = steps[-1].state
        return steps

    def random_contexts(self, encoder_out: EncoderOut, prev_output_tokens: Tensor, words: Tensor) -> Optional[Tensor]:
        """What stands for the contexts of the preceding sentences in the ablation ``random``, (target length, batch,
        context dim); None without it."""
        if "sentence_keys" not in encoder_out:
            return None
        end = prev_output_tokens.size(1)
        steps = torch.arange(end - words.size(1), end, device=words.device)  # the last one only in incremental decoding
        width = encoder_out["encoder_out"][0].size(-1)
        return random_context(encoder_out["sentence_keys"][0], 1, steps, width).to(words)

    def output_layer(self, features: Tensor, **_: Any) -> Tensor:
        """Logits, (..., vocabulary)."""
        logits: Tensor = self.output_projection(features)
        return logits

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the rows, as a beam search asks for. Beams of one sentence share what was read of it."""
        cached = self.get_incremental_state(incremental_state, "decoder")
        if cached is None:
            return
        state, terms = cached["state"], cached["output_terms"]
        reordered = {**cached, "state": state.index_select(0, new_order)}
        sentences = sentences_of_rows(new_order, len(terms), len(state))
        if sentences is not None:
            reordered["memories"] = cached["memories"].select(sentences)
            reordered["output_terms"] = terms.index_select(0, sentences)
        self.set_incremental_state(incremental_state, "decoder", reordered)

    def max_positions(self) -> int:
        return int(self.max_target_positions)


class RNNSearchModel(FairseqEncoderDecoderModel):
    """RNNSearch, with the mechanisms in its decoder that its options name."""

    def __init__(self, cfg: Any, encoder: RNNSearchEncoder, decoder: RNNSearchDecoder) -> None:
        super().__init__(encoder, decoder)
        self.cfg = cfg

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the architectures' options to the command line. No defaults, which come from each one's own dataclass: a
        flag that an architecture sets would become one that unsets it."""
        gen_parser_from_dataclass(parser, RNNSearchConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RNNSearchModel":
        """Build a model for the task's dictionaries.

        Raises:
            UserError: options that contradict each other, the dictionaries or the task.
        """
        cfg = complete(cfg)
        source, target = task.source_dictionary, task.target_dictionary
        source_embeddings = _embeddings(source, cfg.encoder_embed_dim)
        if cfg.share_all_embeddings:
            if source != target:
                raise UserError("--share-all-embeddings needs a joined dictionary")
            target_embeddings = source_embeddings
        else:
            target_embeddings = _embeddings(target, cfg.decoder_embed_dim)
        encoder = RNNSearchEncoder(cfg, source, source_embeddings)
        decoder = RNNSearchDecoder(cfg, target, target_embeddings, context_dim=2 * cfg.encoder_hidden_size)
        model = cls(cfg, encoder, decoder)
        check_task(task, model.required_streams)
        replace_linear(model)
        return model

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        preceding_tokens: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, Dict[str, Any]]:
        """
        Args:
            src_tokens: (batch, source length)
            src_lengths: not needed
            prev_output_tokens: (batch, target length)
            preceding_tokens: the preceding sentences, (batch, preceding length), for an inter-sentence gate
            kwargs: for the decoder, as ``return_gates``

        Returns:
            logits, (batch, target length, vocabulary), and the dictionary of the decoder
        """
        encoder_out = self.encoder(src_tokens, src_lengths, preceding_tokens=preceding_tokens)
        return self.decoder(prev_output_tokens, encoder_out=encoder_out, **kwargs)

    @property
    def gated_layers(self) -> int:
        """How many decoder layers have a context gate."""
        return 1 if self.decoder.cell.context_gate is not None else 0

    @property
    def required_streams(self) -> Tuple[str, ...]:
        """The side streams that the model's input needs, by name."""
        return ("preceding",) if self.encoder.encodes_preceding else ()

    def is_mechanism_parameter(self, name: str) -> bool:
        """Whether a parameter belongs to a mechanism, and so is not in a plain model's checkpoint."""
        return any(f".{part}." in name for part in MECHANISM_PARTS)

    def starts_as(self, name: str) -> Optional[str]:
        """The parameter that one of a mechanism's own starts as a copy of, in a warm start: attention over the
        preceding sentence starts as that over the sentence."""
        return name.replace(".preceding_attention.", ".attention.") if ".preceding_attention." in name else None


def _annotations(encoder_out: EncoderOut, name: str) -> Annotations:
    return Annotations(encoder_out[f"{name}_out"][0], encoder_out[f"{name}_padding_mask"][0])


def _embeddings(dictionary: Any, dim: int) -> nn.Embedding:
    embeddings = nn.Embedding(len(dictionary), dim, padding_idx=dictionary.pad())
    nn.init.uniform_(embeddings.weight, -0.1, 0.1)
    nn.init.zeros_(embeddings.weight[dictionary.pad()])
    return embeddings


def _dropout(cfg: Any, kind: str, module: nn.Module) -> Dropout:
    given = getattr(cfg, f"{kind}_dropout")
    return Dropout(cfg.dropout if given is None else given, module_name=type(module).__name__)


def complete(cfg: Any) -> Any:
    """The options with those filled in that follow from others.

    Raises:
        UserError: options that contradict each other.
    """
    values = {option.name: getattr(cfg, option.name) for option in fields(RNNSearchConfig)}
    complete = RNNSearchConfig(**values)
    if complete.share_all_embeddings:
        complete.share_decoder_input_output_embed = True
    if complete.decoder_embed_dim is None:
        complete.decoder_embed_dim = complete.encoder_embed_dim
    if complete.decoder_hidden_size is None:
        complete.decoder_hidden_size = complete.encoder_hidden_size
    shares_output = complete.share_decoder_input_output_embed
    if complete.decoder_output_dim is None:
        complete.decoder_output_dim = complete.decoder_embed_dim if shares_output else complete.decoder_hidden_size // 2
    if shares_output and complete.decoder_output_dim != complete.decoder_embed_dim:
        raise UserError(
            f"--decoder-output-dim {complete.decoder_output_dim}: an output layer that shares the embeddings is "
            f"{complete.decoder_embed_dim} wide, as --decoder-embed-dim"
        )
    if complete.share_all_embeddings and complete.decoder_embed_dim != complete.encoder_embed_dim:
        raise UserError("--share-all-embeddings: --decoder-embed-dim must be that of --encoder-embed-dim")
    if complete.inter_sentence_gate:
        parse_layers(complete.inter_sentence_layers, 1, "--inter-sentence-layers")
    return complete


MECHANISMS: Dict[str, Dict[str, Any]] = {
    "rnnsearch": {},
    "car_rnnsearch": {"smoothing": "fcwm"},
    "ctxgate_rnnsearch": {"context_gate": "both"},
    "isg_rnnsearch": {"inter_sentence_gate": True, "feedback_attention": True},
}
SIZES: Dict[str, Dict[str, Any]] = {"": {}, "_tiny": {"encoder_embed_dim": 64, "encoder_hidden_size": 64}}


register_presets(RNNSearchModel, RNNSearchConfig, MECHANISMS, SIZES)

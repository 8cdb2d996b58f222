"""RNNSearch, the attentional GRU model (Bahdanau et al. 2015, *Neural Machine Translation by Jointly Learning to Align
and Translate*), with the mechanisms in its decoder, and its named architectures."""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Collection, Dict, List, Optional, Protocol, Sequence, Tuple, TypedDict

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqEncoder
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from fairseq_ctxgates.configuration import plain
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import RNNSEARCH, Defaults, EncoderInput, Mechanism, build_mechanisms
from fairseq_ctxgates.mechanisms import all_mechanisms
from fairseq_ctxgates.models.context_model import ContextDecoder, ContextModel, Extra
from fairseq_ctxgates.models.mechanism_parts import (
    EncoderOut,
    added_tensors,
    arranged_encodings,
    embedding_parts,
    encoder_additions,
    encoding_parts,
    is_shared_by_beams,
)
from fairseq_ctxgates.models.presets import register_presets
from fairseq_ctxgates.models.recurrent_decoder_cell import RecurrentDecoderCell, Step, StepMemory
from fairseq_ctxgates.models.warm_start import WarmStartConfig
from fairseq_ctxgates.modules.additive_attention import weighted_sum
from fairseq_ctxgates.modules.attention import IncrementalState
from fairseq_ctxgates.modules.beams import sentences_of_beams
from fairseq_ctxgates.modules.deep_output import DeepOutput
from fairseq_ctxgates.modules.dropout import Dropout
from fairseq_ctxgates.modules.gated_recurrent_unit import BidirectionalGRU
from fairseq_ctxgates.modules.linear import replace_linear
from fairseq_ctxgates.parts import RecurrentWidths, embed_words

# What the encoder returns; mechanisms add to it.
RNNSEARCH_ENCODER_OUT = frozenset({"encoder_out", "encoder_padding_mask", "first_backward"})


@dataclass
class PlainRNNSearchConfig(WarmStartConfig):
    """The options of the plain model. The default sizes are those of the papers."""

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
            "help": "width of the maxout layer before the output layer (default: half of --decoder-hidden-size, or "
            "--decoder-embed-dim if the output layer shares the embeddings)"
        },
    )
    feedback_attention: bool = field(
        default=False,
        metadata={
            "help": "attend with a state that has read the last word: s' = GRU(s, y), attention with s', then "
            "GRU(s', c) (the baseline of Kuang and Xiong 2018)"
        },
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout probability, unless a more specific one is given"})
    embedding_dropout: Optional[float] = field(
        default=None, metadata={"help": "dropout probability of embeddings (default: that of --dropout)"}
    )
    hidden_dropout: Optional[float] = field(
        default=None,
        metadata={
            "help": "dropout probability of the encoder's states, and of the decoder's states when a word is predicted "
            "from them (default: that of --dropout)"
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


RNNSearchConfig = make_dataclass(
    "RNNSearchConfig",
    [],
    bases=(
        *(mechanism.configs[RNNSEARCH] for mechanism in all_mechanisms() if RNNSEARCH in mechanism.configs),
        PlainRNNSearchConfig,
    ),
)


class RNNSearchOptions(Protocol):
    """The options of the plain model, with all derived defaults filled in."""

    encoder_embed_dim: int
    encoder_hidden_size: int
    decoder_embed_dim: int
    decoder_hidden_size: int
    decoder_output_dim: int
    feedback_attention: bool
    embedding_dropout: float
    hidden_dropout: float
    output_dropout: float
    share_decoder_input_output_embed: bool
    share_all_embeddings: bool
    max_source_positions: int
    max_target_positions: int
    warm_start: Optional[str]


class RNNSearchEncoder(FairseqEncoder):
    """Embeddings and one bidirectional GRU. The annotation h_j of a word is [forward state; backward state].

    Args:
        cfg: the model's options
        mechanisms: those that are on
        dictionary: the source dictionary
        embed_tokens: the source embeddings
    """

    def __init__(
        self,
        cfg: RNNSearchOptions,
        mechanisms: Sequence[Mechanism],
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
    ) -> None:
        super().__init__(dictionary)
        self.mechanisms = mechanisms
        self.padding_idx = dictionary.pad()
        self.max_source_positions = cfg.max_source_positions
        self.hidden_size = cfg.encoder_hidden_size
        self.embed_tokens = embed_tokens
        self.embedding_parts = embedding_parts(mechanisms, "encoder", embed_tokens, dictionary)
        self.gru = BidirectionalGRU(embed_tokens.embedding_dim, self.hidden_size)
        self.encoding_parts = encoding_parts(mechanisms, 2 * self.hidden_size)
        self.embedding_dropout = _dropout(cfg.embedding_dropout, self)
        self.hidden_dropout = _dropout(cfg.hidden_dropout, self)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        **inputs: Tensor,
    ) -> EncoderOut:
        """
        Args:
            src_tokens: (batch, source length), padded on either side
            src_lengths: not needed
            return_all_hiddens: not needed
            inputs: what side streams added to the batch, by name

        Returns:
            a dictionary of lists of one tensor: ``encoder_out``, h, (sentences, source length, 2 · hidden size), and
            ``encoder_padding_mask``, (sentences, source length); the same of the further sentences that mechanisms
            asked for, ``<name>_out`` and ``<name>_padding_mask``; ``first_backward``, the backward state of each
            source's first word, (rows, hidden size); and the tensors that mechanisms added, (rows, ...). There is a row
            for each sentence until :meth:`reorder_encoder_out` makes more.
        """
        encoder_input = EncoderInput(src_tokens, inputs, self.dictionary)
        masks, sentences, tensors = encoder_additions(self.mechanisms, encoder_input, RNNSEARCH_ENCODER_OUT)
        if masks:
            raise UserError(f"RNNSearch cannot encode the source under a mask ({', '.join(masks)}): use a Transformer")
        batches = [tokens for further in sentences.values() for tokens in further.batches(self.padding_idx)]
        (source, *encodings), first = self.encode([src_tokens, *batches])
        encoder_out: EncoderOut = {
            "encoder_out": [source],
            "encoder_padding_mask": [src_tokens.eq(self.padding_idx)],
        }
        for name, encoding, mask in arranged_encodings(sentences, encodings, self.encoding_parts, self.padding_idx):
            encoder_out[f"{name}_out"] = [encoding]
            encoder_out[f"{name}_padding_mask"] = [mask]
        encoder_out["first_backward"] = [first[: len(src_tokens), self.hidden_size :]]
        return {**encoder_out, **tensors}

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings, (batch, length, embed dim), of tokens (batch, length)."""
        words = embed_words(self.embed_tokens, tokens, self.embedding_parts.in_order())
        embedded: Tensor = self.embedding_dropout(words)
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
        """Reorder the rows as fairseq's beam search does; other orders are not defined. Beams of one sentence share its
        annotations."""
        annotations, rows = encoder_out["encoder_out"][0], encoder_out["first_backward"][0]
        sentences = sentences_of_beams(new_order, len(annotations), len(rows))
        reordered = {}
        for name, tensors in encoder_out.items():
            chosen = sentences if is_shared_by_beams(name) else new_order
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
        second words, and so on, those of the longest sentence first), (N,); the number of first words, of second words,
        and so on, (longest length,), on the CPU; and where each row's first word is in that order, (R,)
    """
    is_token = [tokens.ne(padding_idx) for tokens in sentences]
    lengths = torch.cat([tokens.sum(dim=1) for tokens in is_token])
    # A word's place is by its position in the sentence, then by the sentence's rank, 0 for the longest. So the place of
    # a sentence's first word is its rank.
    ranks = torch.empty_like(lengths)
    ranks[lengths.argsort(descending=True)] = torch.arange(len(lengths), device=lengths.device)
    ranks_of = ranks.split([len(tokens) for tokens in is_token])
    longest = max(tokens.size(1) for tokens in is_token)
    last = longest * len(ranks)  # the place of padding, after all words
    places = [
        ((tokens.cumsum(dim=1) - 1) * len(ranks) + rank.unsqueeze(1)).masked_fill(~tokens, last).flatten()
        for tokens, rank in zip(is_token, ranks_of)
    ]
    # The host waits for the device here only, for the numbers of words.
    counts = lengths.unsqueeze(1).gt(torch.arange(longest, device=lengths.device)).sum(dim=0).cpu()
    return torch.cat(places).argsort()[: int(counts.sum())], counts[counts > 0], ranks


class DecoderCache(TypedDict):
    """What decoding steps keep: s_t, (rows, state dim), and what depends on the annotations alone: the memory of
    attention, and the terms of contexts in the deep output, (sentences, source length, 2 · output dim)."""

    state: Tensor
    memory: StepMemory
    output_terms: Tensor


class RNNSearchDecoder(ContextDecoder):
    """The recurrence of :class:`RecurrentDecoderCell` and, for all steps at once, a maxout and an output layer.

    It starts from tanh(W_s h), where h is the backward state of the source's first word. It has one layer, which has
    the number 1 in everything that is returned by layer.

    Args:
        cfg: the model's options
        mechanisms: those that are on
        dictionary: the target dictionary
        embed_tokens: the target embeddings
    """

    def __init__(
        self,
        cfg: RNNSearchOptions,
        mechanisms: Sequence[Mechanism],
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
    ) -> None:
        super().__init__(dictionary)
        self.max_target_positions = cfg.max_target_positions
        self.embed_tokens = embed_tokens
        widths = RecurrentWidths(embed_tokens.embedding_dim, cfg.decoder_hidden_size, 2 * cfg.encoder_hidden_size)
        self.embedding_parts = embedding_parts(mechanisms, "decoder", embed_tokens, dictionary)
        self.init_proj = nn.Linear(cfg.encoder_hidden_size, widths.state, bias=False)  # W_s
        nn.init.xavier_uniform_(self.init_proj.weight)
        self.cell = RecurrentDecoderCell(mechanisms, widths, cfg.feedback_attention)
        self.returnable = {1: self.cell.returnable}
        self.deep_output = DeepOutput(widths.state, widths.word, widths.context, cfg.decoder_output_dim)
        self.output_projection = nn.Linear(cfg.decoder_output_dim, len(dictionary), bias=False)  # W_o
        if cfg.share_decoder_input_output_embed:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=cfg.decoder_output_dim**-0.5)
        self.embedding_dropout = _dropout(cfg.embedding_dropout, self)
        self.hidden_dropout = _dropout(cfg.hidden_dropout, self)
        self.output_dropout = _dropout(cfg.output_dropout, self)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[IncrementalState] = None,
        return_attention: bool = True,
        returns: Collection[str] = (),
        **_: object,
    ) -> Tuple[Tensor, Extra]:
        """Run the decoder without its output layer.

        Args:
            returns: the names of the gates and attention weights that parts return

        Returns:
            features, (batch, target length, output dim), and a dictionary with ``attn``, a list of one (batch, target
            length, source length) or None; and for each name in ``returns`` the tensors by the number of the layer, 1:
            gates (target length, batch, width), attention (heads: 1, batch, target length, length)
        """
        words = self.embed(prev_output_tokens, incremental_state)
        added = added_tensors(encoder_out, RNNSEARCH_ENCODER_OUT)
        cached = self.get_incremental_state(incremental_state, "decoder") or self.start(encoder_out, added)
        first_step = prev_output_tokens.size(1) - words.size(1)
        steps = []
        state = cached["state"]
        for step_input in self.cell.inputs(words.transpose(0, 1), added, first_step):
            steps.append(self.cell(state, step_input, cached["memory"]))
            state = steps[-1].state
        self.set_incremental_state(incremental_state, "decoder", {**cached, "state": state})

        weights = torch.stack([step.attention for step in steps], dim=1)
        context_terms = weighted_sum(weights, cached["output_terms"])
        states = torch.stack([step.state for step in steps], dim=1)
        features = self.deep_output(self.hidden_dropout(states), words, context_terms)
        extra: Extra = {"attn": [weights if return_attention else None], **self.returned(steps, returns)}
        return self.output_dropout(features), extra

    def returned(self, steps: Sequence[Step], names: Collection[str]) -> Dict[str, Dict[int, Tensor]]:
        """What the parts returned in the steps: for each of these names, (target length, rows, width) by the number of
        the layer, 1; attention is (1, rows, target length, width)."""
        known = [name for name in names if name in steps[0].returned]
        found = {name: torch.stack([step.returned[name] for step in steps]) for name in known}
        for name in self.cell.attentions & found.keys():
            found[name] = found[name].transpose(0, 1).unsqueeze(0)
        return {name: {1: found[name]} if name in found else {} for name in names}

    def embed(self, tokens: Tensor, incremental_state: Optional[IncrementalState]) -> Tensor:
        """Embeddings, (batch, target length, embed dim), of tokens (batch, target length); of the last one only in
        incremental decoding."""
        last_only = incremental_state is not None
        words = embed_words(self.embed_tokens, tokens, self.embedding_parts.in_order(), last_only)
        embedded: Tensor = self.embedding_dropout(words)
        return embedded

    def start(self, encoder_out: EncoderOut, added: Dict[str, Tensor]) -> DecoderCache:
        """s_0, and all that depends on the annotations alone."""
        h, padding_mask = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        return {
            "state": torch.tanh(self.init_proj(encoder_out["first_backward"][0])),
            "memory": self.cell.read(h, padding_mask, added),
            "output_terms": self.deep_output.context_proj(h),
        }

    def output_layer(self, features: Tensor, **_: object) -> Tensor:
        """Logits, (..., vocabulary)."""
        logits: Tensor = self.output_projection(features)
        return logits

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the rows, as beam search does. Beams of a sentence share its attention memory."""
        cached = self.get_incremental_state(incremental_state, "decoder")
        if cached is None:
            return
        state, terms = cached["state"], cached["output_terms"]
        reordered = {**cached, "state": state.index_select(0, new_order)}
        sentences = sentences_of_beams(new_order, len(terms), len(state))
        if sentences is not None:
            reordered["memory"] = cached["memory"].select(sentences)
            reordered["output_terms"] = terms.index_select(0, sentences)
        self.set_incremental_state(incremental_state, "decoder", reordered)

    def max_positions(self) -> int:
        return int(self.max_target_positions)


class RNNSearchModel(ContextModel):
    """RNNSearch, with the parts of the mechanisms that its options turn on."""

    Config = RNNSearchConfig

    def __init__(
        self,
        cfg: RNNSearchOptions,
        mechanisms: Tuple[Mechanism, ...],
        encoder: RNNSearchEncoder,
        decoder: RNNSearchDecoder,
    ) -> None:
        super().__init__(encoder, decoder)
        self.cfg = cfg
        self.mechanisms = mechanisms

    @classmethod
    def build_model(cls, cfg: FairseqDataclass, task: FairseqTask) -> "RNNSearchModel":
        """Build a model for the task's dictionaries.

        Raises:
            UserError: options contradict each other, would do nothing, or contradict the dictionaries or the task.
        """
        cfg = with_derived_defaults(cfg)
        if getattr(task.cfg, "left_pad_target", False):  # some tasks of fairseq have no such configuration
            raise UserError("--left-pad-target: RNNSearch's decoder would read the padding first: leave the option out")
        mechanisms, unread_options = build_mechanisms(all_mechanisms(), RNNSEARCH, cfg, num_layers=1)
        for mechanism in mechanisms:
            if mechanism.encoder_attention() is not None:
                name = f"{type(mechanism).__name__}.encoder_attention"
                raise UserError(f"{name}: RNNSearch's encoder has no attention: use a Transformer")
        source, target = task.source_dictionary, task.target_dictionary
        source_embeddings = _embeddings(source, cfg.encoder_embed_dim)
        if cfg.share_all_embeddings:
            if source != target:
                raise UserError("--share-all-embeddings needs a joined dictionary")
            target_embeddings = source_embeddings
        else:
            target_embeddings = _embeddings(target, cfg.decoder_embed_dim)
        encoder = RNNSearchEncoder(cfg, mechanisms, source, source_embeddings)
        decoder = RNNSearchDecoder(cfg, mechanisms, target, target_embeddings)
        model = cls(cfg, mechanisms, encoder, decoder)
        model.check_task(task)
        model.unread_options = unread_options
        model.pending_warm_start = cfg.warm_start
        replace_linear(model)
        return model


def _embeddings(dictionary: Dictionary, dim: int) -> nn.Embedding:
    embeddings = nn.Embedding(len(dictionary), dim, padding_idx=dictionary.pad())
    nn.init.uniform_(embeddings.weight, -0.1, 0.1)
    nn.init.zeros_(embeddings.weight[dictionary.pad()])
    return embeddings


def _dropout(probability: float, module: nn.Module) -> Dropout:
    return Dropout(probability, module_name=type(module).__name__)


def with_derived_defaults(cfg: FairseqDataclass) -> RNNSearchOptions:
    """The options, with the defaults filled in that follow from other options, and plain strings for enumerations.

    Raises:
        UserError: options contradict each other.
    """
    full = RNNSearchConfig(**{option.name: plain(getattr(cfg, option.name)) for option in fields(RNNSearchConfig)})
    if full.share_all_embeddings:
        full.share_decoder_input_output_embed = True
    if full.decoder_embed_dim is None:
        full.decoder_embed_dim = full.encoder_embed_dim
    if full.decoder_hidden_size is None:
        full.decoder_hidden_size = full.encoder_hidden_size
    for name in ("embedding_dropout", "hidden_dropout", "output_dropout"):
        if getattr(full, name) is None:
            setattr(full, name, full.dropout)
    shares_output = full.share_decoder_input_output_embed
    if full.decoder_output_dim is None:
        full.decoder_output_dim = full.decoder_embed_dim if shares_output else full.decoder_hidden_size // 2
    if shares_output and full.decoder_output_dim != full.decoder_embed_dim:
        raise UserError(
            f"--decoder-output-dim {full.decoder_output_dim}: an output layer that shares the embeddings is "
            f"{full.decoder_embed_dim} wide, as --decoder-embed-dim"
        )
    if full.share_all_embeddings and full.decoder_embed_dim != full.encoder_embed_dim:
        raise UserError("--share-all-embeddings: --decoder-embed-dim must be that of --encoder-embed-dim")
    return full


SIZES: Dict[str, Defaults] = {"": {}, "_tiny": {"encoder_embed_dim": 64, "encoder_hidden_size": 64}}

register_presets(RNNSearchModel, RNNSEARCH, "rnnsearch", SIZES)

"""The parts that mechanisms add to a model, by their place in it.

There are four places: the embeddings, the encodings of further sentences, the source context of a decoder layer, and
the connection of source and target context. The recurrent decoder of RNNSearch has the last two in its cell, in a form
in which everything that does not depend on the state is computed before the first step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import (
    ClassVar,
    Collection,
    Dict,
    Generic,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
)

from torch import Tensor, nn

from fairseq_ctxgates.modules.additive_attention import AttentionMemory
from fairseq_ctxgates.modules.attention import EncodedSentence, IncrementalState, SentenceAttention
from fairseq_ctxgates.modules.norm_order import SublayerNorm

Returned = Dict[str, Tensor]  # gates and attention weights that a part returns beside its result, by name


class Part(nn.Module, ABC):
    """A module that a mechanism adds to a model; its parameters are the mechanism's own.

    ``gates`` and ``attentions`` name what the part can return beside its result: the values of gates and
    the weights of attention. ``warm_start_source`` names, for a module of the part, the module that it copies in a
    warm start; that module stands beside the part, in the same decoder layer.
    """

    gates: ClassVar[Tuple[str, ...]] = ()
    attentions: ClassVar[Tuple[str, ...]] = ()
    warm_start_source: ClassVar[Mapping[str, str]] = {}

    @property
    def returnable(self) -> Tuple[str, ...]:
        """The names of all that the part can return beside its result."""
        return (*self.gates, *self.attentions)


P = TypeVar("P", bound=Part)


class Parts(nn.ModuleDict, Generic[P]):
    """The parts for one place, by the names of their mechanisms, in the order in which they are applied.

    Args:
        parts: None for a mechanism that has no part in this place
    """

    def __init__(self, parts: Mapping[str, Optional[P]]) -> None:
        super().__init__({name: part for name, part in parts.items() if part is not None})

    def named(self) -> List[Tuple[str, P]]:
        """The name and the part of each mechanism."""
        return list(self.items())  # type: ignore[arg-type]

    def in_order(self) -> List[P]:
        """The parts."""
        return [part for _, part in self.named()]


# --- the embeddings


class EmbeddingPart(Part):
    """Changes the embeddings of the encoder or of the decoder. ``before`` is the number of earlier tokens it reads."""

    before: int = 0

    @abstractmethod
    def forward(self, embeddings: Tensor, tokens: Tensor, length: int) -> Tensor:
        """
        Args:
            embeddings: (batch, tokens, embed dim)
            tokens: their tokens, (batch, tokens)
            length: the number of tokens whose embeddings are asked for, counted from the end

        Returns:
            the embeddings of the last tokens, (batch, length, embed dim)
        """


def embed_words(
    embed_tokens: nn.Module, tokens: Tensor, parts: Sequence[EmbeddingPart], last_only: bool = False
) -> Tensor:
    """Embeddings of tokens, changed by each part in turn, (batch, length, embed dim).

    Args:
        embed_tokens: the embedding table
        tokens: (batch, length)
        last_only: return the last token only, (batch, 1, embed dim), as incremental decoding needs it
    """
    before = [part.before for part in parts]
    length = 1 + sum(before) if last_only else tokens.size(1)
    tokens = tokens[:, -length:]
    embeddings: Tensor = embed_tokens(tokens.contiguous())
    for done, part in enumerate(parts, start=1):
        wanted = min(tokens.size(1), 1 + sum(before[done:])) if last_only else tokens.size(1)
        embeddings = part(embeddings, tokens[:, -embeddings.size(1) :], wanted)
    return embeddings


# --- the encodings of further sentences


class EncodingPart(Part):
    """Changes the encodings of further sentences."""

    @abstractmethod
    def forward(self, states: Tensor, distances: Optional[Tensor]) -> Tensor:
        """
        Args:
            states: (batch, length, width)
            distances: the distance of each state's sentence, (batch, length), from 1, and 0 for a state that attention
                must not see; None: all states are of the nearest sentence

        Returns:
            the changed states, of the same shape
        """


# --- the Transformer's decoder layer


class LayerInput(NamedTuple):
    """What a decoder layer reads beside the target context.

    Attributes:
        sentence: h, the encoded source sentence. In beam search it has a row for each sentence, but the target context
            has one for each beam; :func:`attend` knows which rows belong together
        attention: the layer's attention over the sentence
        added: the tensors that mechanisms added to the encoder's output, by name; encodings have a row for each
            sentence, too, and all other tensors one for each beam
        first_step: the number of the first target position, from 0
        incremental_state: while decoding, what steps keep for the next ones; None in forced decoding
        returns: the names of gates and attention weights to return
    """

    sentence: EncodedSentence
    attention: SentenceAttention
    added: Mapping[str, Tensor]
    first_step: int
    incremental_state: Optional[IncrementalState]
    returns: Collection[str]


class SourceContextPart(Part):
    """Changes the source context of a decoder layer."""

    @abstractmethod
    def forward(self, query: Tensor, source: Tensor, layer_input: LayerInput) -> Tuple[Tensor, Returned]:
        """
        Args:
            query: the target context as attention reads it, (target length, batch, embed dim)
            source: the source context that attention gave, before dropout and layer normalization, of the same shape
            layer_input: what else the layer reads

        Returns:
            the new source context, of the same shape, and what the part returns beside it
        """


class Connection(Part):
    """Connects target and source context in a decoder layer."""

    @abstractmethod
    def forward(
        self, target: Tensor, source: Tensor, target_input: Tensor, norm: SublayerNorm
    ) -> Tuple[Tensor, Returned]:
        """
        Args:
            target: t, (target length, batch, embed dim)
            source: the source context after dropout, before normalization, of the same shape
            target_input: t as sublayers read it, of the same shape
            norm: the layer normalization of this sublayer

        Returns:
            u, the input of the feed-forward sublayer, of the same shape, and what the part returns beside it
        """


class ResidualConnection(Connection):
    """The residual connection of the plain Transformer."""

    def forward(
        self, target: Tensor, source: Tensor, target_input: Tensor, norm: SublayerNorm
    ) -> Tuple[Tensor, Returned]:
        return norm.add(target, source), {}


# --- RNNSearch's recurrent cell


class RecurrentWidths(NamedTuple):
    """The widths of an embedding y_{t-1}, of the state s_t and of a context c_t."""

    word: int
    state: int
    context: int


class RecurrentPart(Part):
    """A part of the recurrent cell. Its inputs that do not depend on the state are computed for all steps at once, by
    :meth:`step_inputs`, and given to it step by step."""

    def step_inputs(self, words: Tensor, added: Mapping[str, Tensor], first_step: int) -> Optional[Tensor]:
        """Inputs of all steps that do not depend on the state.

        Args:
            words: y_{t-1} of each step, (target length, rows, word dim)
            added: the tensors that mechanisms added to the encoder's output, by name; see :class:`LayerInput`
            first_step: the number of the first step, from 0

        Returns:
            (target length, rows, any width), or None
        """
        return None


class RecurrentSourcePart(RecurrentPart):
    """Changes the source context of each step."""

    def read(self, added: Mapping[str, Tensor]) -> Optional[AttentionMemory]:
        """What the part attends to in every step, from the tensors that mechanisms added to the encoder's output."""
        return None

    def context_terms(self, context: Tensor) -> Tensor:
        """The projections of a context that the part needs in each step, (..., any width) from (..., context dim).

        It must be an affine function of each context by itself. For the first part, the cell applies it to the
        annotations h_j and sums the results with the weights α_j, which sum to one. For every later part, the cell
        applies it to the context that the part before it returned.
        """
        return context

    @abstractmethod
    def forward(
        self,
        previous: Tensor,
        query: Tensor,
        source: Tensor,
        step_input: Optional[Tensor],
        memory: Optional[AttentionMemory],
    ) -> Tuple[Tensor, Returned]:
        """
        Args:
            previous: s_{t-1}, (rows, state dim)
            query: the state that attention reads, (rows, state dim)
            source: :meth:`context_terms` of the source context, (rows, any width)
            step_input: of this step, from :meth:`step_inputs`
            memory: from :meth:`read`

        Returns:
            the new source context, (rows, context dim), and what the part returns beside it, (rows, any width) each
        """


class RecurrentConnection(RecurrentPart):
    """Connects target and source context in the recurrent unit."""

    def context_terms(self, context_proj: nn.Module, context: Tensor) -> Tensor:
        """The terms of the source context, C c first, (..., any width), from contexts, (..., context dim). Like
        :meth:`RecurrentSourcePart.context_terms`, it must be an affine function of each context by itself."""
        terms: Tensor = context_proj(context)
        return terms

    @abstractmethod
    def forward(
        self, previous: Tensor, step_input: Optional[Tensor], source: Tensor, target_terms: Sequence[Tensor]
    ) -> Tuple[Tensor, List[Tensor], Returned]:
        """
        Args:
            previous: s_{t-1}, (rows, state dim)
            step_input: of this step, from :meth:`step_inputs`
            source: :meth:`context_terms` of the source context, (rows, any width)
            target_terms: of the target context, (rows, 3 · state dim) each: U s_{t-1}, which the reset gate multiplies,
                then W y_{t-1}; with feedback attention U s̃ only

        Returns:
            C c_t and the terms of the target context in the same order, scaled, each (rows, 3 · state dim), and what
            the part returns beside them
        """


class PlainRecurrentConnection(RecurrentConnection):
    """The connection of a cell without context gates, which leaves both contexts as they are."""

    def forward(
        self, previous: Tensor, step_input: Optional[Tensor], source: Tensor, target_terms: Sequence[Tensor]
    ) -> Tuple[Tensor, List[Tensor], Returned]:
        return source, list(target_terms), {}


# --- the Transformer's options that parts read


class DecoderOptions(Protocol):
    """The decoder's options."""

    embed_dim: int
    ffn_embed_dim: int


class TransformerOptions(Protocol):
    """The options of fairseq's ``TransformerConfig`` that parts read."""

    decoder: DecoderOptions
    activation_fn: str
    activation_dropout: float
    relu_dropout: float

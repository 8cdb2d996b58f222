"""The base class of mechanisms: the models, the task and the command line read the facts that a subclass states."""

from __future__ import annotations

from dataclasses import fields
from enum import EnumMeta
from typing import (
    Any,
    Callable,
    ClassVar,
    Collection,
    Dict,
    Generic,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
)

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_ctxgates.configuration import Options, as_flag, options_from
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.layer_list import parse_layers
from fairseq_ctxgates.modules.attention import SentenceAttention
from fairseq_ctxgates.parts import (
    Connection,
    EmbeddingPart,
    EncodingPart,
    RecurrentConnection,
    RecurrentSourcePart,
    RecurrentWidths,
    SourceContextPart,
    TransformerOptions,
)

TRANSFORMER, RNNSEARCH = "transformer", "rnnsearch"  # the backbones
Defaults = Mapping[str, object]  # the default values of options, by name


class EncoderInput(NamedTuple):
    """The input of an encoder.

    Attributes:
        source: the source sentences, (batch, source length)
        inputs: what side streams added to ``net_input``, by name; most are tensors
        dictionary: the source dictionary
    """

    source: Tensor
    inputs: Mapping[str, Any]
    dictionary: Dictionary

    def require(self, name: str) -> Tensor:
        """The tensor with this name; ValueError if the batch does not have it."""
        tensor: Optional[Tensor] = self.inputs.get(name)
        if tensor is None:
            raise ValueError(f"net_input has no {name}: is this the task context_translation?")
        return tensor


class FurtherSentences(NamedTuple):
    """Further sentences to encode for each source sentence, each by itself.

    Attributes:
        tokens: (batch, length), padded. A row is one sentence; with ``groups`` it may be several
        groups: for each group of sentences, the places of their tokens in the flattened rows, (sentences, their
            length). A shorter sentence is padded with batch · length, which is one more than the last place
        distances: the distance of each token's sentence, (batch, length), from 1; 0 for a token that attention must
            not see, such as padding. If None, attention sees everything but padding
    """

    tokens: Tensor
    groups: Sequence[Tensor] = ()
    distances: Optional[Tensor] = None

    @property
    def batch_count(self) -> int:
        """The number of :meth:`batches`."""
        return len(self.groups) or 1

    def batches(self, padding_idx: int) -> List[Tensor]:
        """The tokens to encode: those of each group, (sentences, their length); without groups, those of all rows."""
        if not self.groups:
            return [self.tokens]
        tokens = torch.nn.functional.pad(self.tokens.flatten(), (0, 1), value=padding_idx)
        return [tokens[group] for group in self.groups]

    def padding_mask(self, padding_idx: int) -> Tensor:
        """(batch, length), true where attention must not see."""
        return self.tokens.eq(padding_idx) if self.distances is None else self.distances.eq(0)

    def arrange(self, encodings: Sequence[Tensor]) -> Tensor:
        """Put the encodings of the :meth:`batches`, (sentences, their length, width) each, into the places of the rows,
        (batch, length, width). With groups, padding is zero."""
        if not self.groups:
            return encodings[0]
        width = encodings[0].size(-1)
        places = torch.cat([group.flatten() for group in self.groups])
        rows = encodings[0].new_zeros(self.tokens.numel() + 1, width)
        rows = rows.index_copy(0, places, torch.cat([encoding.flatten(0, 1) for encoding in encodings]))
        return rows[:-1].view(*self.tokens.shape, width)


class Mechanism(Generic[Options]):
    """The options, side streams and parts that are added to a model together.

    A subclass states the facts as class attributes, and overrides the methods for the places that its parts take in a
    model. An instance belongs to one model and has that model's options.

    Attributes:
        name: key of its parts, which appears in the names of their parameters
        configs: the dataclass of its options, for each backbone that it supports
        switch: the option that turns it on; it is off when that is False, None or "none"
        layers_option: the option that lists the decoder layers with its parts, such as ``all``, ``6`` or ``1,3-5``, or
            has the value None for the top layer; a mechanism without such an option has parts in all layers
        layers: the numbers of the decoder layers with its parts, from 1 at the bottom, in ascending order
        initial_options: the options that only decide initial values of parameters; a trained model does not read them
        kept_options: the options that a warm start from a model with this mechanism must keep: they decide what is
            computed from its parameters, although these may have the same names and shapes with other values
        architectures: the architectures that it adds, by backbone and by name: for each, the defaults that differ
        streams: every side stream that it may read; their options belong to the task

    Args:
        options: the mechanism's options, plain strings where fairseq has ``ChoiceEnum`` values
        num_layers: the number of decoder layers
        backbone: the model's backbone

    Raises:
        UserError: options contradict each other, or would do nothing although the mechanism is on.
    """

    name: ClassVar[str]
    configs: ClassVar[Mapping[str, Type[FairseqDataclass]]]
    switch: ClassVar[str]
    layers_option: ClassVar[Optional[str]] = None
    initial_options: ClassVar[Tuple[str, ...]] = ()
    kept_options: ClassVar[Tuple[str, ...]] = ()
    architectures: ClassVar[Mapping[str, Mapping[str, Defaults]]] = {}
    streams: ClassVar[Tuple[Type[SideStream], ...]] = ()

    def __init__(self, options: Options, num_layers: int, backbone: str = TRANSFORMER) -> None:
        self.options = options
        self.num_layers = num_layers
        self.backbone = backbone
        self.layers = self._layers() if self.is_on else ()
        if self.is_on:
            self.check()

    @property
    def is_on(self) -> bool:
        """Whether the model has this mechanism."""
        return self.is_on_in(self.options)

    @classmethod
    def is_on_in(cls, options: object) -> bool:
        """Whether options, as attributes, turn this mechanism on; those of old checkpoints may lack them."""
        return getattr(options, cls.switch, None) not in (False, None, "none")

    @classmethod
    def kept_values(cls, options: object) -> Dict[str, str]:
        """The :attr:`kept_options` of a model, as text, by name, with defaults that follow from other options
        filled in. The options are attributes; those of old checkpoints may lack some."""
        return {name: str(getattr(options, name)) for name in cls.kept_options if hasattr(options, name)}

    @property
    def names_layers(self) -> bool:
        """Whether the options name single decoder layers, whose numbers then must not change."""
        return self.layers_option is not None and getattr(self.options, self.layers_option) != "all"

    def _layers(self) -> Tuple[int, ...]:
        if self.layers_option is None:
            return tuple(range(1, self.num_layers + 1))
        text = getattr(self.options, self.layers_option)
        return (self.num_layers,) if text is None else parse_layers(text, self.num_layers, as_flag(self.layers_option))

    def check(self) -> None:
        """Raise UserError where options contradict each other, or would do nothing."""

    def unread_options(self) -> Dict[str, str]:
        """The options that were given although the mechanism is off: the message for the user, by the option's name."""
        if self.is_on:
            return {}
        others = [option.name for option in fields(self.options) if option.name not in (self.switch, "_name")]
        architecture = next(iter(self.architectures.get(self.backbone, {})), None)
        needs = self._turned_on() + (f", which --arch {architecture} sets" if architecture else "")
        return {name: self._would_do_nothing(name, needs) for name in others if self._is_given(name)}

    def _turned_on(self) -> str:
        """The switch as users give it: ``--inter-sentence-gate``, ``--smoothing fcwm|ccwm``."""
        (kind,) = (option.type for option in fields(self.options) if option.name == self.switch)
        values = [str(value) for value in kind if str(value) != "none"] if isinstance(kind, EnumMeta) else []
        return " ".join([as_flag(self.switch), *filter(None, ["|".join(values)])])

    def refuse_unread(self, needs: str, *options: str) -> None:
        """Raise UserError if one of these options was given, because it would do nothing.

        Args:
            needs: what the options need to do something
            options: their names
        """
        for name in options:
            if self._is_given(name):
                raise UserError(self._would_do_nothing(name, needs))

    def _is_given(self, option: str) -> bool:
        return bool(getattr(self.options, option) != getattr(type(self.options)(), option))

    def _would_do_nothing(self, option: str, needs: str) -> str:
        return f"{as_flag(option)} {getattr(self.options, option)} would do nothing: it needs {needs}"

    def check_training_data(self, splits: Sequence[Split]) -> None:
        """Log a warning if the data of a training do not have what the mechanism learns from."""

    @property
    def is_ablated(self) -> bool:
        """Whether an ablation leaves parameters of the mechanism without gradients; such a model is not trained."""
        return False

    # --- the side streams

    @property
    def required_streams(self) -> Tuple[str, ...]:
        """The names of the side streams that the model's input needs."""
        return ()

    @property
    def context_size(self) -> int:
        """The number of preceding sentences in a row of the model's input; also 1 if the mechanism reads none."""
        return 1

    @property
    def unread_streams(self) -> Tuple[str, ...]:
        """The names of side streams that may be loaded although an ablation does not read them."""
        return ()

    # --- the encoder

    def encoder_attention(self) -> Optional[Type[MultiheadAttention]]:
        """The class of the encoder's self-attention, if it is not fairseq's. On the Transformer only."""
        return None

    def source_masks(self, encoder_input: EncoderInput) -> Dict[str, Tensor]:
        """Masks under which the source is encoded once more, by name, (batch, source length, source length), true where
        a position may see another. The encoding under mask ``x`` is added to the encoder's output as ``x_out``, (source
        length, batch, embed dim); the beams of a sentence share it. On the Transformer only."""
        return {}

    def sentences(self, encoder_input: EncoderInput) -> Dict[str, FurtherSentences]:
        """Further sentences to encode, by name. The encoding of the sentences ``x`` is added to the encoder's output as
        ``x_out``, (length, batch, embed dim), or (sentences, length, context dim) on RNNSearch; their padding mask is
        added as ``x_padding_mask``. The beams of a sentence share both."""
        return {}

    def tensors(self, encoder_input: EncoderInput) -> Dict[str, Tensor]:
        """Tensors that are added to the encoder's output as they are, by name, (batch, ...). Beam search reorders the
        first dimension. Their names must not end in ``_out`` or ``_padding_mask``, as the names of encodings do."""
        return {}

    # --- the parts, None in a place where the mechanism has none

    def encoding_parts(self, width: int) -> Mapping[str, EncodingPart]:
        """The parts for the encodings of further sentences, by the names of the sentences; ``width`` is the width of
        the encodings."""
        return {}

    def embedding_part(
        self, side: str, embed_dim: int, dictionary: Dictionary, embed_scale: float
    ) -> Optional[EmbeddingPart]:
        """The part for the embeddings of one side, ``encoder`` or ``decoder``. The model later multiplies these
        embeddings by ``embed_scale``."""
        return None

    def source_part(
        self, layer: int, options: TransformerOptions, new_attention: Callable[[], SentenceAttention]
    ) -> Optional[SourceContextPart]:
        """The part for the source context of one of :attr:`layers`, on the Transformer. ``layer`` is its number, from 1
        at the bottom; ``new_attention`` makes attention like the layer's own, with new parameters."""
        return None

    def connection(self, layer: int, options: TransformerOptions) -> Optional[Connection]:
        """The part that connects target and source context in one of :attr:`layers`, on the Transformer."""
        return None

    def recurrent_source_part(self, widths: RecurrentWidths) -> Optional[RecurrentSourcePart]:
        """The part for the source context of RNNSearch's cell."""
        return None

    def recurrent_connection(self, widths: RecurrentWidths) -> Optional[RecurrentConnection]:
        """The part that connects target and source context in RNNSearch's cell."""
        return None


def build_mechanisms(
    mechanisms: Collection[Type[Mechanism]], backbone: str, values: object, num_layers: int
) -> Tuple[Tuple[Mechanism, ...], Dict[str, str]]:
    """The mechanisms of a model.

    Args:
        values: has all options of the model as attributes

    Returns:
        the mechanisms that the options turn on; the options that were given for those that are off, see
        :meth:`Mechanism.unread_options`

    Raises:
        UserError: options contradict each other, or would do nothing although their mechanism is on.
    """
    built = [
        mechanism(options_from(mechanism.configs[backbone], values), num_layers, backbone)
        for mechanism in mechanisms
        if backbone in mechanism.configs
    ]
    unread = {name: text for mechanism in built for name, text in mechanism.unread_options().items()}
    return tuple(mechanism for mechanism in built if mechanism.is_on), unread

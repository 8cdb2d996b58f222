"""What the mechanisms of a model add to it: entries of the encoder's output, and parts."""

from __future__ import annotations

from itertools import islice
from typing import Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar

from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import EncoderInput, FurtherSentences, Mechanism
from fairseq_ctxgates.parts import EmbeddingPart, EncodingPart, Parts

T = TypeVar("T")
EncoderOut = Dict[str, List[Tensor]]  # fairseq's: each entry is in a list, which may be empty
# The arguments of a decoder layer, to which the tensors of mechanisms are added.
RESERVED = frozenset(
    "x self incremental_state self_attn_mask self_attn_padding_mask need_attn first_step returns".split()
)


def is_shared_by_beams(name: str) -> bool:
    """Whether the beams of a sentence share this entry of the encoder's output. They share encodings and padding masks,
    which are recognized by the end of their names."""
    return name.endswith(("_out", "_padding_mask"))


def encoder_additions(
    mechanisms: Collection[Mechanism], encoder_input: EncoderInput, own: Collection[str]
) -> Tuple[Dict[str, Tensor], Dict[str, FurtherSentences], EncoderOut]:
    """Masks, sentences and tensors that mechanisms add to the encoder, each by name; see :class:`Mechanism`.

    Args:
        own: the names in the encoder's own output

    Raises:
        ValueError: a name is taken.
    """
    masks: Dict[str, Tensor] = {}
    sentences: Dict[str, FurtherSentences] = {}
    tensors: EncoderOut = {}
    taken = {*RESERVED, *own}

    def take(mechanism: Mechanism, what: str, name: str, *entries: str) -> None:
        # A tensor has a row for each beam.
        if (what == "tensors" and is_shared_by_beams(name)) or taken.intersection(entries):
            raise ValueError(f"{type(mechanism).__name__}.{what}: the name {name!r} is taken, use another one")
        taken.update(entries)

    for mechanism in mechanisms:
        for name, mask in mechanism.source_masks(encoder_input).items():
            take(mechanism, "source_masks", name, f"{name}_out")
            masks[name] = mask
        for name, further in mechanism.sentences(encoder_input).items():
            take(mechanism, "sentences", name, f"{name}_out", f"{name}_padding_mask")
            sentences[name] = further
        for name, tensor in mechanism.tensors(encoder_input).items():
            take(mechanism, "tensors", name, name)
            tensors[name] = [tensor]
    return masks, sentences, tensors


def arranged_encodings(
    sentences: Mapping[str, FurtherSentences],
    encodings: Sequence[Tensor],
    parts: Parts[EncodingPart],
    padding_idx: int,
) -> Iterator[Tuple[str, Tensor, Tensor]]:
    """The encodings of further sentences, changed by the part of the same name.

    Args:
        sentences: by name
        encodings: the encodings of their :meth:`FurtherSentences.batches`, (sentences, their length, width) each, in
            the order of the names
        parts: by the names of the sentences

    Yields:
        the name, the encodings, (batch, length, width), and the padding mask, (batch, length)
    """
    remaining = iter(encodings)
    for name, further in sentences.items():
        encoded = further.arrange(list(islice(remaining, further.batch_count)))
        if name in parts:
            encoded = parts[name](encoded, further.distances)
        yield name, encoded, further.padding_mask(padding_idx)


def added_tensors(encoder_out: EncoderOut, own: Collection[str]) -> Dict[str, Tensor]:
    """The tensors that mechanisms added to an encoder's own output, by name."""
    return {name: entry[0] for name, entry in encoder_out.items() if name not in own and entry}


def single_part(parts: Collection[Optional[T]], default: T) -> T:
    """The part, or the class of a part, that a mechanism has for a place with room for one only, or the default.

    Raises:
        UserError: two mechanisms have one.
    """
    given = [part for part in parts if part is not None]
    if len(given) > 1:
        names = " and ".join(part.__name__ if isinstance(part, type) else type(part).__name__ for part in given)
        raise UserError(f"{names} cannot be in one model, because both take the same place: turn one off")
    return given[0] if given else default


def encoding_parts(mechanisms: Collection[Mechanism], width: int) -> Parts[EncodingPart]:
    """The mechanisms' parts for the encodings of further sentences, by the names of the sentences."""
    return Parts({name: part for mechanism in mechanisms for name, part in mechanism.encoding_parts(width).items()})


def embedding_parts(
    mechanisms: Collection[Mechanism],
    side: str,
    embed_tokens: nn.Embedding,
    dictionary: Dictionary,
    embed_scale: float = 1.0,
) -> Parts[EmbeddingPart]:
    """The mechanisms' parts for the embeddings of ``encoder`` or ``decoder``, by the mechanism's name."""
    width = embed_tokens.embedding_dim
    return Parts(
        {mechanism.name: mechanism.embedding_part(side, width, dictionary, embed_scale) for mechanism in mechanisms}
    )

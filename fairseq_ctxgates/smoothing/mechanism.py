"""Context-aware smoothing (CAR; Chen et al. 2017) as a mechanism: its options and its place in a model."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import RNNSEARCH, TRANSFORMER, Mechanism
from fairseq_ctxgates.smoothing.context_aware_smoothing import (
    ACTIVATIONS,
    ContextAwareSmoothing,
    ContextOfWords,
    ConvolutionalContextOfWords,
    FeedforwardContextOfWords,
)

SmoothingChoice = ChoiceEnum(["none", "fcwm", "ccwm"])
SideChoice = ChoiceEnum(["encoder", "decoder", "both"])
WordsChoice = ChoiceEnum(["unknown", "all"])
CombineChoice = ChoiceEnum(["replace", "add"])
ActivationChoice = ChoiceEnum(list(ACTIVATIONS))


@dataclass
class SmoothingConfig(FairseqDataclass):
    """The options, the same on both backbones."""

    smoothing: SmoothingChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "learn embeddings from the words around a word (Chen et al. 2017), with a feed-forward (fcwm) or a "
            "convolutional (ccwm) network"
        },
    )
    smoothing_side: SideChoice = field(  # type: ignore[valid-type]
        default="encoder", metadata={"help": "smooth the input words of the encoder, of the decoder, or of both"}
    )
    smoothing_words: WordsChoice = field(  # type: ignore[valid-type]
        default="unknown",
        metadata={"help": "smooth only the words that are not in the vocabulary (unknown), or all words"},
    )
    smoothing_combine: Optional[CombineChoice] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "whether the learned vector replaces a word's own embedding or is added to it; default: replace "
            "for unknown words, add for all words (where the slides replace, which loses the word)"
        },
    )
    smoothing_window: int = field(
        default=4,
        metadata={"help": "how many words are read on each side of a word; in the decoder only those before it"},
    )
    smoothing_width: int = field(
        default=3, metadata={"help": "how many neighbouring words a feature of ccwm is computed from"}
    )
    smoothing_activation: ActivationChoice = field(  # type: ignore[valid-type]
        default="tanh",
        metadata={"help": "the non-linear function of both networks (the slides write σ, which is never negative)"},
    )


class EmbeddingSmoothing(Mechanism[SmoothingConfig]):
    """Embeddings that a network learns from the words around a word."""

    name = "smoothing"
    configs = {TRANSFORMER: SmoothingConfig, RNNSEARCH: SmoothingConfig}
    switch = "smoothing"
    computing_options = ("smoothing_words", "smoothing_combine", "smoothing_activation")
    architectures = {
        TRANSFORMER: {"car_transformer": {"smoothing": "fcwm"}},
        RNNSEARCH: {"car_rnnsearch": {"smoothing": "fcwm"}},
    }

    def check(self) -> None:
        if self.options.smoothing_window < 1:
            raise UserError(f"--smoothing-window {self.options.smoothing_window}: give at least one word")
        if self.options.smoothing == "fcwm":
            self.refuse_unread("--smoothing ccwm", "smoothing_width")

    def embedding_part(
        self, side: str, embed_dim: int, dictionary: Dictionary, embed_scale: float
    ) -> Optional[ContextAwareSmoothing]:
        """In the decoder the window has only the words before a word.

        Raises:
            UserError: the window has too few words for a feature of CCWM.
        """
        options = self.options
        if options.smoothing_side not in (side, "both"):
            return None
        before = options.smoothing_window
        after = before if side == "encoder" else 0
        is_all = options.smoothing_words == "all"
        return ContextAwareSmoothing(
            self.network(embed_dim, before, after, side),
            padding=dictionary.pad(),
            unknown=None if is_all else dictionary.unk(),
            add=is_all if options.smoothing_combine is None else options.smoothing_combine == "add",
            embed_scale=embed_scale,
        )

    def network(self, embed_dim: int, before: int, after: int, side: str) -> ContextOfWords:
        """FCWM or CCWM over a window of words before and after; errors as of :meth:`embedding_part`."""
        activation, width = ACTIVATIONS[self.options.smoothing_activation], self.options.smoothing_width
        if self.options.smoothing == "fcwm":
            return FeedforwardContextOfWords(embed_dim, before, after, activation)
        if not 1 <= width <= before + after:
            raise UserError(
                f"--smoothing-width {width}: with --smoothing-window {before} a feature can be computed from 1 to "
                f"{before + after} words in the {side}"
            )
        return ConvolutionalContextOfWords(embed_dim, before, after, width, activation)

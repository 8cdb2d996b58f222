"""Context-aware smoothing (CAR; Chen et al. 2017) as a mechanism: its options and its place in a model."""

import logging
from dataclasses import dataclass, field
from typing import Dict, Optional, Sequence, Tuple

import numpy as np
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ctxgates.data.data_directory import ROWS_AT_ONCE, UNK, Split, load_rows
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import RNNSEARCH, TRANSFORMER, Mechanism
from fairseq_ctxgates.smoothing.context_aware_smoothing import (
    ACTIVATIONS,
    ContextAwareSmoothing,
    ContextOfWords,
    ConvolutionalContextOfWords,
    FeedforwardContextOfWords,
)

logger = logging.getLogger(__name__)

FEW_UNKNOWN = 1e-4  # if not even this share of the words is unknown, the network hardly learns
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


def is_added(options: object) -> bool:
    """Whether the learned vector is added to a word's own embedding, by ``smoothing_combine`` or its default; otherwise
    it replaces the embedding. The options are attributes; those of old checkpoints may lack some."""
    combine = getattr(options, "smoothing_combine", None)
    return bool(getattr(options, "smoothing_words", None) == "all" if combine is None else combine == "add")


class EmbeddingSmoothing(Mechanism[SmoothingConfig]):
    """Embeddings that a network learns from the words around a word."""

    name = "smoothing"
    configs = {TRANSFORMER: SmoothingConfig, RNNSEARCH: SmoothingConfig}
    switch = "smoothing"
    # The window decides the shape of fcwm's parameters, but not of ccwm's.
    kept_options = ("smoothing_words", "smoothing_combine", "smoothing_activation", "smoothing_window")
    architectures = {
        TRANSFORMER: {"car_transformer": {"smoothing": "fcwm"}},
        RNNSEARCH: {"car_rnnsearch": {"smoothing": "fcwm"}},
    }

    @classmethod
    def kept_values(cls, options: object) -> Dict[str, str]:
        return {**super().kept_values(options), "smoothing_combine": "add" if is_added(options) else "replace"}

    def check(self) -> None:
        if self.options.smoothing_window < 1:
            raise UserError(f"--smoothing-window {self.options.smoothing_window}: give at least one word")
        if self.options.smoothing == "fcwm":
            self.refuse_unread("--smoothing ccwm", "smoothing_width")

    def check_training_data(self, splits: Sequence[Split]) -> None:
        """Log a warning if only unknown words are smoothed and hardly one is unknown."""
        if self.options.smoothing_words == "all":
            return
        for side, role in (("encoder", "source"), ("decoder", "target")):
            if self.options.smoothing_side in (side, "both"):
                langs = [split.source_lang if side == "encoder" else split.target_lang for split in splits]
                counts = [_count_unknown(split, lang) for split, lang in zip(splits, langs)]
                unknown, words = np.sum(counts, axis=0).tolist()
                if unknown < FEW_UNKNOWN * words:
                    logger.warning(
                        f"only unknown words are smoothed, and of the {words:,} {role} words of the training data "
                        f"{unknown:,} are unknown, too few to learn from: give --smoothing-words all, or text that is "
                        f"not split into subwords"
                    )

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
        return ContextAwareSmoothing(
            self.network(embed_dim, before, after, side),
            padding=dictionary.pad(),
            unknown=None if options.smoothing_words == "all" else dictionary.unk(),
            add=is_added(options),
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


def _count_unknown(split: Split, lang: str) -> Tuple[int, int]:
    """The number of unknown words, and of all words, in one language of a split; none of data that are not mapped."""
    try:
        rows = load_rows(split.text_prefix(lang))
    except UserError:  # --dataset-impl raw or lazy
        return 0, 0
    ids = np.frombuffer(rows._bin_buffer, dtype=rows._index.dtype)
    pieces = (ids[first : first + ROWS_AT_ONCE] for first in range(0, len(ids), ROWS_AT_ONCE))
    return sum(int(np.count_nonzero(piece == UNK)) for piece in pieces), len(ids) - len(rows)

"""The scores of target words with and without preceding sentences, and CXMI over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

import numpy as np

from fairseq_ctxgates.analysis.bootstrap import Estimate, bootstrap

WITH = "with a preceding sentence"


@dataclass(frozen=True)
class SentenceScores:
    """log2 P of each target token of a sentence, with the preceding sentence and without it.

    Attributes:
        number: the number of the sentence in the split, from 1
        is_preceded: whether it has a preceding sentence
        tokens: the target tokens
        with_context, without: log2 P, (target length,)
    """

    number: int
    is_preceded: bool
    tokens: List[str]
    with_context: np.ndarray
    without: np.ndarray

    @property
    def saved(self) -> np.ndarray:
        """The bits saved at each target token, (target length,)."""
        return self.with_context - self.without


@dataclass(frozen=True)
class CXMI:
    """CXMI over some sentences, and the two cross-entropies whose difference it is, in bits for each target token.

    The cross-entropies are None if there are no sentences.
    """

    sentences: int
    target_tokens: int
    cross_entropy_with: Optional[float]
    cross_entropy_without: Optional[float]
    bits: Estimate

    def as_dict(self) -> Dict[str, object]:
        """CXMI and the two cross-entropies, for JSON."""
        return {
            "sentences": self.sentences,
            "target_tokens": self.target_tokens,
            "cross_entropy_without": self.cross_entropy_without,
            "cross_entropy_with": self.cross_entropy_with,
            **self.bits.as_dict("cxmi"),
        }


def measure(sentences: Sequence[SentenceScores], resamples: int, seed: int) -> CXMI:
    """CXMI over these sentences, with its interval over resamples of the sentences."""
    if not sentences:
        return CXMI(0, 0, None, None, Estimate(None, None, None))
    sums = np.array([[len(s.tokens), s.with_context.sum(), s.without.sum()] for s in sentences])
    tokens, with_context, without = sums.sum(axis=0)

    def saved_bits(totals: np.ndarray) -> np.ndarray:
        return (totals[..., 1] - totals[..., 2]) / totals[..., 0]

    bits = bootstrap(sums, saved_bits, resamples, seed)
    return CXMI(len(sentences), int(tokens), float(-with_context / tokens), float(-without / tokens), bits)


@dataclass(frozen=True)
class Measured:
    """The scores of a model, and CXMI over all sentences, those that have a preceding one, and those that have none."""

    name: str
    path: str
    sentences: Sequence[SentenceScores]
    groups: Mapping[str, CXMI]

    @classmethod
    def of(cls, name: str, path: str, sentences: Sequence[SentenceScores], resamples: int, seed: int) -> Measured:
        """Measure CXMI, with intervals over resamples of the sentences."""
        groups = {
            "all": sentences,
            WITH: [sentence for sentence in sentences if sentence.is_preceded],
            "without one": [sentence for sentence in sentences if not sentence.is_preceded],
        }
        measured = {group: measure(members, resamples, seed) for group, members in groups.items()}
        return cls(name, path, sentences, measured)

    def as_dict(self) -> Dict[str, object]:
        """The measures, for JSON."""
        groups = {name.replace(" ", "_"): cxmi.as_dict() for name, cxmi in self.groups.items()}
        return {"system": self.name, "path": self.path, **groups}

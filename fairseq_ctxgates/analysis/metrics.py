"""Metrics for sacreBLEU's paired bootstrap: metrics of sentences and of documents for resampling documents, and the
scores of other programs."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any, List, NamedTuple, Sequence

import numpy as np
from sacrebleu.metrics.base import Metric

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import read_lines

# A line of comet-score: the file, the number of the segment and its score.
COMET_LINE = re.compile(r".*\tSegment \d+\tscore: (\S+)")


def join_documents(lines: Sequence[str], documents: np.ndarray) -> List[str]:
    """The lines of each document as one text, joined by line feeds.

    Args:
        documents: the number of each line's document, (lines,)
    """
    return ["\n".join(line for line, _ in group) for _, group in groupby(zip(lines, documents), lambda pair: pair[1])]


class SentencesOfDocuments:
    """One of sacreBLEU's metrics over sentences, for texts in which each document is one string of several lines. The
    score is that of all sentences; resampling draws documents.

    Args:
        metric: sacreBLEU's metric
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metric, name)

    def _extract_corpus_statistics(self, documents: Sequence[str], references: Sequence[Sequence[str]]) -> Any:
        """The sums of the sentences' statistics, a row for each document."""
        lengths = [len(document.split("\n")) for document in documents]
        sentences = [[line for document in text for line in document.split("\n")] for text in (documents, *references)]
        statistics = np.array(self._metric._extract_corpus_statistics(sentences[0], sentences[1:]))
        return np.add.reduceat(statistics, np.cumsum([0, *lengths[:-1]]), axis=0).tolist()


class WholeDocuments(SentencesOfDocuments):
    """One of sacreBLEU's metrics, with each document as one segment: *d-BLEU* (Liu et al. 2020)."""

    def _extract_corpus_statistics(self, documents: Sequence[str], references: Sequence[Sequence[str]]) -> Any:
        texts = [[document.replace("\n", " ") for document in text] for text in (documents, *references)]
        return self._metric._extract_corpus_statistics(texts[0], texts[1:])

    def _aggregate_and_compute(self, statistics: Any) -> Any:
        score = self._metric._aggregate_and_compute(statistics)
        score.name = f"d-{score.name}"
        return score


class Mean(NamedTuple):
    """A metric's score of a text, as sacreBLEU's test reads it."""

    name: str
    score: float


class MeanSignature:
    """The signature of a mean, to which sacreBLEU's test adds facts."""

    def __init__(self) -> None:
        self._facts = ["mean of the segments' scores"]

    def update(self, name: str, value: object) -> None:
        """Add a fact."""
        self._facts.append(f"{name}:{value}")

    def __str__(self) -> str:
        return "|".join(self._facts)


class SegmentScores:
    """The mean of the segment scores of another program, in the form of one of sacreBLEU's metrics. A segment is
    represented by its score, written as a number.

    Args:
        name: the name of the other program's metric
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def _extract_corpus_statistics(self, segments: Sequence[str], references: object) -> List[List[float]]:
        return [[float(segment), 1.0] for segment in segments]

    def _compute_score_from_stats(self, sums: np.ndarray) -> Mean:
        total, count = map(float, sums)
        return Mean(self.name, total / count)

    def _aggregate_and_compute(self, statistics: Sequence[Sequence[float]]) -> Mean:
        return self._compute_score_from_stats(np.sum(statistics, axis=0))

    def get_signature(self) -> MeanSignature:
        """Says what was done with the scores. How they were computed is in the other program's own signature."""
        return MeanSignature()


def read_segment_scores(path: Path, segments: int, text: object) -> List[str]:
    """The score of each segment, as written in a file with one number per line or in the output of ``comet-score``.

    Args:
        segments: the number of segments of the text
        text: the name of the text in messages

    Raises:
        UserError: the file cannot be read, or has no score for each segment
    """
    lines = list(enumerate(read_lines(path), start=1))
    matches = ((number, COMET_LINE.fullmatch(line)) for number, line in lines)
    scores = [(number, match[1]) for number, match in matches if match] or lines
    for line_number, score in scores:
        if not _is_finite_number(score):
            raise UserError(f"{path}, line {line_number}: {score!r} is not a segment's score: give one number per line")
    if len(scores) != segments:
        raise UserError(f"{path} has the scores of {len(scores)} segments, but {text} has {segments}")
    return [score for _, score in scores]


def _is_finite_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False

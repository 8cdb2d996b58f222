"""The page of ``ctxgates analyze cxmi --html``: a document of the split with what its words gain."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Dict, List, Mapping, Optional

import numpy as np

from fairseq_ctxgates.analysis.cxmi_scores import Measured, SentenceScores
from fairseq_ctxgates.analysis.inference import Inference
from fairseq_ctxgates.analysis.page import Page, PageSentence
from fairseq_ctxgates.analysis.preceding_context import preceding_attention, preceding_stream
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE


class Document:
    """A document of the split with what its words gain from each of several models."""

    def __init__(self) -> None:
        self.series: List[str] = []
        self.rows: List[int] = []
        self.sentences: Dict[int, PageSentence] = {}  # by row

    def add(self, inference: Inference, model: Measured, args: argparse.Namespace) -> None:
        """Add a model; the first model decides which document is shown."""
        split = args.gen_subset
        dataset, stream = inference.task.dataset(split), preceding_stream(inference, split)
        saved = {sentence.number - 1: sentence for sentence in model.sentences}
        if not self.series:
            self.rows = chosen_document(stream.rows[:, 0], saved, args.sentence)
        self.series.append(model.name)
        target = inference.split(split).load_language(inference.languages[1])
        words, target_words = inference.task.source_dictionary, inference.task.target_dictionary
        for row in self.rows:
            if row not in saved:
                continue  # too long for the model
            before, own = stream.sources_before(row), stream.sentences[row]
            *texts, own_words = ([words[token] for token in sentence.tolist()[:-1]] for sentence in (*before, own))
            batch = inference.to_device(dataset.collater([dataset[row]]))
            attention = preceding_attention(inference, batch, list(map(len, before)), len(own))
            weights = {} if attention is None else {model.name: attention.round(3).tolist()}
            tokens = [target_words[token] for token in target[row].tolist()]
            shown = self.sentences.get(row, PageSentence(row + 1, [], own_words, tokens, values={}))
            self.sentences[row] = replace(
                shown,
                before=max(shown.before, texts, key=len),  # those of the model that reads most
                values={**shown.values, model.name: saved[row].saved.round(4).tolist()},
                attention={**shown.attention, **weights},
            )

    def page(self, title: str) -> Page:
        """The page, with the sentences that no model left out."""
        found = [self.sentences[row] for row in self.rows if row in self.sentences]
        sentences = [sentence for sentence in found if len(sentence.values) == len(self.series)]
        bits = [abs(value) for sentence in sentences for values in sentence.values.values() for value in values]
        return Page(
            title=title,
            what="Bits that each target word gains from the preceding sentences, given the reference before it. Point "
            "at a word to see its attention over them.",
            series=self.series,
            sentences=sentences,
            middle=0.0,
            range=max(1.0, float(np.percentile(bits, 99))) if bits else 1.0,
            low="loses",
            high="gains",
        )


def chosen_document(
    nearest: np.ndarray, sentences: Mapping[int, SentenceScores], number: Optional[int] = None
) -> List[int]:
    """The rows of the document that contains a sentence; by default, of the document that saves most bits in the mean
    over the tokens of its sentences that have a preceding one.

    Args:
        nearest: for each sentence, the row of the sentence before it, or ``NONE``, (sentences,)
        sentences: the sentences that were scored, by row
        number: the number of the sentence, from 1
    """
    first = np.arange(len(nearest))  # for each sentence, the row of the first sentence of its document
    for row, before in enumerate(nearest):
        if before != NONE:
            first[row] = first[before]
    if number is not None:
        return np.flatnonzero(first == first[number - 1]).tolist()
    saved: Dict[int, List[float]] = {}
    for row, sentence in sentences.items():
        if nearest[row] != NONE:
            saved.setdefault(int(first[row]), []).extend(sentence.saved)
    best = max(saved, key=lambda document: float(np.mean(saved[document])))
    return np.flatnonzero(first == best).tolist()

"""What ``ctxgates analyze cxmi`` writes: its tables and its figure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, List, Optional, Sequence

from fairseq.data import data_utils

from fairseq_ctxgates.analysis.bootstrap import COVERAGE
from fairseq_ctxgates.analysis.cxmi_scores import CXMI, Measured, SentenceScores
from fairseq_ctxgates.analysis.figures import colour, label_tokens, new_figure, token_width
from fairseq_ctxgates.analysis.report import Cell, Table
from fairseq_ctxgates.data.subwords import group_subwords

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def summary_table(models: Sequence[Measured]) -> Table:
    """A row for each model and group of sentences."""
    columns = {
        "model": "",
        "sentences": "",
        "number": ",d",
        "target tokens": ",d",
        "without (bits/token)": ".3f",
        "with (bits/token)": ".3f",
        "CXMI (bits/token)": "",
    }
    rows: List[List[Cell]] = [
        [
            model.name,
            group,
            c.sentences,
            c.target_tokens,
            c.cross_entropy_without,
            c.cross_entropy_with,
            c.bits.text(".4f"),
        ]
        for model in models
        for group, c in model.groups.items()
    ]
    return Table(columns, rows)


def sentence_table(models: Sequence[Measured]) -> Table:
    """A row for each model and sentence."""
    columns = {
        "model": "",
        "sentence": "d",
        "preceded": "",
        "target tokens": "d",
        "log2 P with": ".4f",
        "log2 P without": ".4f",
        "saved (bits/token)": ".4f",
    }
    rows: List[List[Cell]] = [
        [
            *_sentence_cells(model, s),
            len(s.tokens),
            float(s.with_context.sum()),
            float(s.without.sum()),
            float(s.saved.mean()),
        ]
        for model in models
        for s in model.sentences
    ]
    return Table(columns, rows)


def _sentence_cells(model: Measured, sentence: SentenceScores) -> List[Cell]:
    return [model.name, sentence.number, "yes" if sentence.is_preceded else "no"]


def token_table(models: Sequence[Measured], remove_bpe: str) -> Table:
    """A row for each model and target token (or word), with what it gains: the P-CXMI of Fernandes et al. 2023.

    Args:
        remove_bpe: how subwords are joined to words; the bits of a word are the sum over its tokens
    """
    columns = {"model": "", "sentence": "d", "preceded": "", "position": "d", "token": ""}
    columns.update({"log2 P with": ".4f", "log2 P without": ".4f", "saved (bits)": ".4f"})
    rows: List[List[Cell]] = []
    for model in models:
        for s in model.sentences:
            for position, places in enumerate(places_of_words(s.tokens, remove_bpe), start=1):
                word = data_utils.post_process(" ".join(s.tokens[place] for place in places), remove_bpe)
                bits = [float(scores[places].sum()) for scores in (s.with_context, s.without, s.saved)]
                rows.append([*_sentence_cells(model, s), position, word, *bits])
    return Table(columns, rows)


def places_of_words(tokens: Sequence[str], remove_bpe: str) -> List[List[int]]:
    """The positions of each word's tokens in a sentence. The last token, end of sentence, is a word of its own.

    Each token is in exactly one word: two words that share a token count as one, and a token that is in no word, such
    as a lone space mark of sentencepiece, belongs to the word after it or, at the end, to the last word.
    """
    end = len(tokens) - 1
    ends: List[int] = []  # the first position after each word
    for parts in group_subwords(tokens[:end], remove_bpe):
        places = [position for _, position in parts]
        if ends and places[0] < ends[-1]:
            ends.pop()
        ends.append(places[-1] + 1)
    ends = [*ends[:-1], *([end] if end else []), end + 1]
    return [list(range(start, stop)) for start, stop in zip([0, *ends], ends)]


def drawn_sentence(sentences: Sequence[SentenceScores], number: Optional[int] = None) -> SentenceScores:
    """The sentence with this number; by default, among those with a preceding sentence, the one that saves most bits
    for each token."""
    if number is None:
        preceded = (sentence for sentence in sentences if sentence.is_preceded)
        return max(preceded, key=lambda sentence: float(sentence.saved.mean()))
    return next(sentence for sentence in sentences if sentence.number == number)


def cxmi_figure(sentences: Sequence[SentenceScores], overall: CXMI, drawn: SentenceScores) -> Figure:
    """Above, a histogram of the sentences' saved bits for each target token; below, the saved bits of each token of one
    sentence."""
    width = token_width(len(drawn.tokens))
    figure = new_figure(width, 6.5)
    above, below = figure.subplots(2, 1)
    _draw_histogram(above, sentences, overall)
    below.bar(range(len(drawn.tokens)), drawn.saved, color=[colour(0 if bits >= 0 else 5) for bits in drawn.saved])
    below.axhline(0, color="black", linewidth=0.8)
    label_tokens(below, drawn.tokens)
    below.set_xlim(-0.6, len(drawn.tokens) - 0.4)
    below.set_xlabel("target token, given the reference before it")
    below.set_ylabel("bits saved")
    what = "the preceding sentence saves" if drawn.is_preceded else "without a preceding sentence, the difference is"
    title = f"Sentence {drawn.number}: {what} {drawn.saved.sum():.2f} bits"
    below.set_title(textwrap.fill(title, int(width * 12)), fontsize=10)
    return figure


def _draw_histogram(axes: Axes, sentences: Sequence[SentenceScores], overall: CXMI) -> None:
    bits = overall.bits
    axes.hist([float(sentence.saved.mean()) for sentence in sentences], bins=40, color=colour(0))
    if bits.value is not None:
        axes.axvline(bits.value, color="black", label=f"CXMI {bits.text('.3f')}")
    if bits.low is not None and bits.high is not None:
        axes.axvspan(bits.low, bits.high, color="black", alpha=0.2, label=f"its {COVERAGE:.0%} interval")
    axes.set_xlabel("bits saved for each target token, mean over the sentence")
    axes.set_ylabel("sentences")
    axes.set_title("Sentences that have a preceding one", fontsize=10)
    axes.legend(frameon=False, fontsize=9)

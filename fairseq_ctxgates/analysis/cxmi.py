"""How many bits the preceding sentence saves for each target word (Fernandes et al. 2021, *Measuring and Increasing
Context Usage in Context-Aware Machine Translation*).

``ctxgates analyze cxmi data-bin/X --path checkpoint.pt --csv cxmi.csv --figure cxmi.png``

The conditional cross-mutual information CXMI(C → Y | X) is the cross-entropy without the preceding sentence C minus the
cross-entropy with it: the mean over the target tokens, end of sentence included, of

    log2 P(y_i | y_<i, x, c) - log2 P(y_i | y_<i, x).

The first term is the model's score. The second is the score of the same model without preceding sentences (each is
replaced by NULL, or none is concatenated), with those of another sentence (``--shifted-context``), or of the model of
``--baseline-path``. Several models are measured one after the other; ``--html`` shows a document with what every word
gains from each.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
from fairseq.data import data_utils

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import COVERAGE, Estimate, add_bootstrap_options, bootstrap
from fairseq_ctxgates.analysis.figures import colour, label_tokens, new_figure, token_width
from fairseq_ctxgates.analysis.inference import (
    Inference,
    add_inference_options,
    check_checkpoints,
    check_overrides,
    checkpoint_paths,
    reads_preceding,
)
from fairseq_ctxgates.analysis.options import add_names_option
from fairseq_ctxgates.analysis.page import Page, PageSentence
from fairseq_ctxgates.analysis.preceding_attention import preceding_attention
from fairseq_ctxgates.analysis.report import Cell, Result, Table, add_page_option, add_report_options
from fairseq_ctxgates.analysis.scores import token_log_probs
from fairseq_ctxgates.analysis.systems import system_names
from fairseq_ctxgates.commands.options import CommandParser
from fairseq_ctxgates.data.subwords import GROUPED, group_subwords
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.concatenated_sentences import ConcatenatedSentences
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences, is_shifted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WITH = "with a preceding sentence"


@dataclass(frozen=True)
class SentenceScores:
    """log2 P of each target token of a sentence, with the preceding sentence and without it.

    number: of the sentence in the split, from 1
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
    def preceded(self) -> str:
        """Yes or no."""
        return "yes" if self.is_preceded else "no"

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
    def of(cls, name: str, path: str, sentences: Sequence[SentenceScores], args: argparse.Namespace) -> Measured:
        """With intervals as the options say."""
        groups = {
            "all": sentences,
            WITH: [sentence for sentence in sentences if sentence.is_preceded],
            "without one": [sentence for sentence in sentences if not sentence.is_preceded],
        }
        measured = {group: measure(members, args.resamples, args.seed) for group, members in groups.items()}
        return cls(name, path, sentences, measured)

    def as_dict(self) -> Dict[str, object]:
        """The measures, for JSON."""
        groups = {name.replace(" ", "_"): summary_as_dict(cxmi) for name, cxmi in self.groups.items()}
        return {"system": self.name, "path": self.path, **groups}


def check_reads_context(inference: Inference) -> None:
    """Raise UserError unless the model reads preceding sentences, by a gate or by concatenation."""
    if not (reads_preceding(inference.model) or concatenates(inference)):
        raise UserError(
            f"{inference.path} reads no preceding sentence: give --path a model trained with --arch isg_transformer, "
            f"--inter-sentence-gate or --concatenate-preceding, and this one to --baseline-path"
        )


def concatenates(inference: Inference) -> bool:
    """Whether the model's source is concatenated with the preceding sentence."""
    return getattr(inference.task.cfg, "concatenate_preceding", None) is not None


def without_context(args: argparse.Namespace, path: str, inference: Inference) -> Inference:
    """The model of ``--baseline-path``; else the same model with other sentences' preceding ones, or without any.

    Raises:
        UserError: the former translates in another direction, ``--model-overrides`` has the option that takes these
            away, or the model reads other sentences' already.
    """
    if args.baseline_path:
        baseline = Inference.from_options(args, path=args.baseline_path)
        baseline.check_direction(path, inference.direction)
        return baseline
    overrides = {"inter_sentence_ablation": "null"} if reads_preceding(inference.model) else {}
    for name in overrides.keys() & args.model_overrides.keys():
        raise UserError(
            f"--model-overrides: cxmi itself sets {name!r} for the scores without context; leave it out, or "
            f"give --baseline-path"
        )
    if args.shifted_context:
        if is_shifted(inference.task.cfg):
            raise UserError(f"--shifted-context: {path} reads the preceding sentences of others already; leave it out")
        same = Inference.from_options(args, path=path)
        same.task.cfg.preceding_context = "shifted"
        return same
    same = Inference.from_options(args, path=path, **overrides)
    if concatenates(same):
        for name in ConcatenatedSentences.saved_options:
            setattr(same.task.cfg, name, None)
    return same


def score_split(inference: Inference, args: argparse.Namespace) -> Dict[int, np.ndarray]:
    """log2 P of each target token, (target length,), by the row of the sentence in the split."""
    scores: Dict[int, np.ndarray] = {}
    for batch in inference.batches(args.gen_subset, args.max_tokens, args.batch_size):
        log_probs = token_log_probs(inference, batch)
        scores.update(zip(batch["id"].tolist(), (row / np.log(2) for row in log_probs)))
    return scores


def score_sentences(inference: Inference, baseline: Inference, args: argparse.Namespace) -> List[SentenceScores]:
    """Every sentence of the split that is not too long for either model.

    Raises:
        UserError: the split or its stream of preceding sentences does not exist, or every sentence is too long.
    """
    with_context, without = score_split(inference, args), score_split(baseline, args)
    rows = sorted(with_context.keys() & without.keys())
    if not rows:
        raise UserError(f"every sentence of {args.gen_subset} of {args.data} is too long for the models")
    dataset = inference.task.dataset(args.gen_subset)
    stream = preceding_stream(inference, args.gen_subset)
    dictionary = inference.task.target_dictionary
    return [
        SentenceScores(
            number=row + 1,
            is_preceded=bool(stream.rows[row, 0] != NONE),
            tokens=[dictionary[token] for token in dataset.tgt[row].tolist()],
            with_context=with_context[row],
            without=without[row],
        )
        for row in rows
    ]


def preceding_stream(inference: Inference, split: str) -> PrecedingSentences:
    """The preceding sentences of a split that was loaded."""
    streams = inference.task.dataset(split).streams
    (stream,) = (stream for stream in streams if isinstance(stream, PrecedingSentences))
    return stream


def check_shown(inference: Inference, baseline: Inference, args: argparse.Namespace) -> None:
    """Raise UserError, before the whole split is scored, if the figure or the page would have nothing to show."""
    for model in (inference, baseline):
        if args.sentence is None:
            model.load_split(args.gen_subset)
        elif args.figure:
            model.check_sentence(args.gen_subset, args.sentence)
        else:  # the page is of other sentences too
            model.sentence(args.gen_subset, args.sentence)
    rows = sorted({*inference.rows_read(args.gen_subset)} & {*baseline.rows_read(args.gen_subset)})
    if rows and (preceding_stream(inference, args.gen_subset).rows[rows, 0] == NONE).all():
        raise UserError(f"no sentence of {args.gen_subset} has a preceding one: there is nothing to draw")


def drawn_sentence(sentences: Sequence[SentenceScores], number: Optional[int] = None) -> SentenceScores:
    """The sentence of this number; by default, of those that have a preceding one, the sentence with the most bits
    saved for each token."""
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
            *(model.name, group, c.sentences, c.target_tokens),
            *(c.cross_entropy_without, c.cross_entropy_with, c.bits.text(".4f")),
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
            *(model.name, s.number, s.preceded, len(s.tokens)),
            *(float(s.with_context.sum()), float(s.without.sum()), float(s.saved.mean())),
        ]
        for model in models
        for s in model.sentences
    ]
    return Table(columns, rows)


def token_table(models: Sequence[Measured], remove_bpe: str = "none") -> Table:
    """A row for each model and target token, or word, with what it gains, the P-CXMI of Fernandes et al. 2023.

    Args:
        remove_bpe: how sub-words are joined to words, whose bits are the sum over their tokens
    """
    columns = {"model": "", "sentence": "d", "preceded": "", "position": "d", "token": ""}
    columns.update({"log2 P with": ".4f", "log2 P without": ".4f", "saved (bits)": ".4f"})
    rows: List[List[Cell]] = [
        [
            *(model.name, s.number, s.preceded, position, data_utils.post_process(" ".join(tokens), remove_bpe)),
            *(float(scores[places].sum()) for scores in (s.with_context, s.without, s.saved)),
        ]
        for model in models
        for s in model.sentences
        for position, places in enumerate(places_of_words(s.tokens, remove_bpe), start=1)
        for tokens in [[s.tokens[place] for place in places]]
    ]
    return Table(columns, rows)


def places_of_words(tokens: Sequence[str], remove_bpe: str) -> List[List[int]]:
    """The places of each word's tokens in a sentence, whose last token is the end of sentence, a word of its own.

    Each token is in one word: two words that share a token are one here, and a token of no word, such as a space of
    sentencepiece alone, belongs to the word after it, or to the last one.
    """
    end = len(tokens) - 1
    ends: List[int] = []  # the first place after each word
    for parts in group_subwords(tokens[:end], remove_bpe):
        places = [position for _, position in parts]
        if ends and places[0] < ends[-1]:
            ends.pop()
        ends.append(places[-1] + 1)
    ends = [*ends[:-1], *([end] if end else []), end + 1]
    return [list(range(start, stop)) for start, stop in zip([0, *ends], ends)]


def summary_as_dict(cxmi: CXMI) -> Dict[str, object]:
    """CXMI and the two cross-entropies, for JSON."""
    return {
        "sentences": cxmi.sentences,
        "target_tokens": cxmi.target_tokens,
        "cross_entropy_without": cxmi.cross_entropy_without,
        "cross_entropy_with": cxmi.cross_entropy_with,
        **cxmi.bits.as_dict("cxmi"),
    }


class Document:
    """A document of the split with what its words gain from each of several models."""

    def __init__(self) -> None:
        self.series: List[str] = []
        self.rows: List[int] = []
        self.sentences: Dict[int, Dict[str, Any]] = {}  # the fields of each PageSentence, by its row

    def add(self, inference: Inference, model: Measured, args: argparse.Namespace) -> None:
        """Add a model; the first one decides which document it is.

        Raises:
            UserError: the sentence whose document it shall be does not exist.
        """
        split = args.gen_subset
        dataset, stream = inference.task.dataset(split), preceding_stream(inference, split)
        saved = {sentence.number - 1: sentence for sentence in model.sentences}
        if not self.series:
            self.rows = chosen_document(stream.rows[:, 0], saved, args.sentence)
        self.series.append(model.name)
        source, target = (inference.split(split).load_language(language) for language in inference.languages)
        words, target_words = inference.task.source_dictionary, inference.task.target_dictionary
        longest = inference.task.cfg.max_source_positions  # of one preceding sentence, which is cut at its beginning
        for row in self.rows:
            if row not in saved:
                continue  # too long for the model
            before = [source[place][-longest:] for place in stream.source_rows(row)]
            shown = self.sentences.setdefault(row, {"number": row + 1, "before": [], "values": {}, "attention": {}})
            shown["source"] = [words[token] for token in source[row].tolist()[:-1]]
            shown["tokens"] = [target_words[token] for token in target[row].tolist()]
            shown["values"][model.name] = saved[row].saved.round(4).tolist()
            texts = [[words[token] for token in sentence.tolist()[:-1]] for sentence in before]
            shown["before"] = max(shown["before"], texts, key=len)  # of the model that reads most
            batch = inference.to_device(dataset.collater([dataset[row]]))
            attention = preceding_attention(inference, batch, list(map(len, before)), len(source[row]))
            if attention is not None:
                shown["attention"][model.name] = attention.round(3).tolist()

    def page(self, title: str) -> Page:
        """The page, with the sentences that no model left out."""
        found = [self.sentences[row] for row in self.rows if row in self.sentences]
        sentences = [PageSentence(**shown) for shown in found if len(shown["values"]) == len(self.series)]
        bits = [abs(value) for sentence in sentences for values in sentence.values.values() for value in values]
        return Page(
            title=title,
            what="Bits that each target word gains from the preceding sentences, given the reference before it; under "
            "the pointer the attention over them",
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
    """The rows of the document that has a sentence; by default of the one whose tokens save most in the mean, those of
    sentences that have a preceding one.

    Args:
        nearest: the row of the sentence before each, or ``NONE``, (sentences,)
        sentences: those that were scored, by their rows
        number: of the sentence, from 1
    """
    first = np.arange(len(nearest))  # the row of the first sentence of each one's document
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


class CXMIAnalysis(Analysis):
    """How many bits the preceding sentence saves for each target word: log2 P with it less log2 P without it."""

    name = "cxmi"
    output_options = (*Analysis.output_options, "tokens", "html")

    def add_options(self, parser: CommandParser) -> None:
        """The models, the split, the intervals, the files to write and the sentence drawn."""
        add_inference_options(parser, several=True)
        add_names_option(parser, "models", "--path")
        baseline = parser.add_mutually_exclusive_group()
        baseline.add_argument(
            "--baseline-path",
            metavar="CHECKPOINT",
            help="the model without preceding sentences (default: those of --path, every preceding sentence NULL)",
        )
        baseline.add_argument(
            "--shifted-context",
            action="store_true",
            help="measure against the same model with the preceding sentences of another sentence, as "
            "--preceding-context shifted gives: what is left is what the right ones are worth",
        )
        add_bootstrap_options(parser)
        add_report_options(
            parser, csv="the scores of each sentence", figure="the first model's bits, of all and of one"
        )
        parser.add_argument(
            "--tokens",
            type=Path,
            metavar="FILE",
            help="also write to this file, as CSV, what each target token gains (P-CXMI; Fernandes et al. 2023)",
        )
        parser.add_argument(
            "--remove-bpe",
            nargs="?",
            choices=GROUPED,
            const="subword_nmt",
            default="none",
            help="join the sub-words of --tokens to words, which gain what their tokens do",
        )
        parser.add_condition("--tokens", lambda args: args.tokens, "remove_bpe")
        add_page_option(parser, "what each word of a document gains")
        help = "the sentence drawn, and the page's document, that of sentence N, from 1 (default: what saves most)"
        parser.add_argument("--sentence", type=int, metavar="N", help=help)

    def run(self, args: argparse.Namespace) -> Result:
        """Score the split with and without preceding sentences."""
        paths = checkpoint_paths(args)
        baselines = [args.baseline_path] if args.baseline_path else []
        check_checkpoints(baselines)
        check_overrides(args, [*paths, *baselines])
        models: List[Measured] = []
        document = Document()
        direction = ""
        for name, path in zip(system_names(paths, args.names), paths):
            inference = Inference.from_options(args, path=path)
            direction = direction or inference.direction
            inference.check_direction(paths[0], direction)
            check_reads_context(inference)
            baseline = without_context(args, path, inference)
            if (args.figure or args.html) and not models:
                check_shown(inference, baseline, args)
            sentences = score_sentences(inference, baseline, args)
            models.append(Measured.of(name, path, sentences, args))
            if args.html:
                document.add(inference, models[-1], args)
        preceded = [sentence for sentence in models[0].sentences if sentence.is_preceded]
        drawn = drawn_sentence(models[0].sentences, args.sentence) if args.figure else None
        over = f"{args.gen_subset} of {args.data}"
        same = f"the same model{', preceding sentences shifted' if args.shifted_context else ''}"
        return Result(
            headline=f"CXMI over {over}; without: {args.baseline_path or same}",
            tables=[summary_table(models)],
            report={
                "baseline_path": args.baseline_path,
                "shifted_context": args.shifted_context,
                "data": args.data,
                "split": args.gen_subset,
                "unit": "bits for each target token",
                "systems": [model.as_dict() for model in models],
            },
            csv=sentence_table(models),
            more_csv={"tokens": token_table(models, args.remove_bpe)},
            figure=partial(cxmi_figure, preceded, models[0].groups[WITH], drawn) if drawn else None,
            page=document.page(f"What the preceding sentences are worth: {over}") if args.html else None,
        )

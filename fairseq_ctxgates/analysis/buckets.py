"""The base of ``bleu-by-length`` and ``bleu-by-unknowns``: BLEU by buckets of the source sentences.

A system's BLEU in a bucket is the corpus BLEU of the bucket's sentences, by sacreBLEU. The first system is the
baseline; for every later system the difference to the baseline is shown too.
"""

from __future__ import annotations

import argparse
import bisect
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from sacrebleu.metrics import BLEU

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.figures import bars, legend_above, new_figure
from fairseq_ctxgates.analysis.options import add_data_options, add_file_option, add_split_option
from fairseq_ctxgates.analysis.report import Cell, Result, Table, add_report_options
from fairseq_ctxgates.analysis.systems import (
    add_text_options,
    bleu_metric,
    check_columns,
    check_length,
    read_sentences,
    read_systems_and_references,
)
from fairseq_ctxgates.command_line import CommandParser, language_pair
from fairseq_ctxgates.data.data_directory import Split, find_split, first_data_dir
from fairseq_ctxgates.data.subwords import check_subwords

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Buckets:
    """Ranges of whole numbers. Each bound is the last number of its bucket; a further bucket has all larger numbers."""

    bounds: Tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Buckets:
        """The buckets of ``--buckets``, such as ``10,20,30``: the last number of each."""
        return cls(_rising_numbers(text, least=0))

    @classmethod
    def parse_starts(cls, text: str) -> Buckets:
        """The buckets of ``--bucket-starts``, such as ``10,20,30``: the first number of each after the first bucket,
        which starts at 0."""
        return cls(tuple(start - 1 for start in _rising_numbers(text, least=1)))

    @property
    def names(self) -> List[str]:
        """The range of each bucket: ``≤10``, ``11–20``, ``>20``."""
        first = "0" if self.bounds[0] == 0 else f"≤{self.bounds[0]}"
        between = [
            str(high) if high == low + 1 else f"{low + 1}–{high}" for low, high in zip(self.bounds, self.bounds[1:])
        ]
        return [first, *between, f">{self.bounds[-1]}"]

    def of(self, value: int) -> int:
        """The index, in ``names``, of the bucket that contains a value."""
        return bisect.bisect_left(self.bounds, value)


def _rising_numbers(text: str, least: int) -> Tuple[int, ...]:
    try:
        numbers = tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 10,20,30") from None
    if numbers[0] < least or any(low >= high for low, high in zip(numbers, numbers[1:])):
        raise argparse.ArgumentTypeError(f"{text!r} must rise from number to number, from {least} or more")
    return numbers


SENTENCE_COLUMNS = {"sentences": "", "%": ".1f"}  # of each bucket, in addition to the columns of the systems


@dataclass(frozen=True)
class BucketScores:
    """The BLEU of several systems in each bucket of sentences.

    Attributes:
        names: the names of the systems, the baseline first
        buckets: the range of each bucket
        sentences: the number of sentences in each bucket
        bleu: for each system, the BLEU in each bucket; None in a bucket without sentences
        total: for each system, the BLEU over all sentences
        signature: sacreBLEU's signature
    """

    names: Sequence[str]
    buckets: Sequence[str]
    sentences: Sequence[int]
    bleu: Sequence[Sequence[Optional[float]]]
    total: Sequence[float]
    signature: str

    def differences(self, system: int) -> List[Optional[float]]:
        """A system's BLEU in each bucket minus the baseline's."""
        return [
            None if score is None or baseline is None else score - baseline
            for score, baseline in zip(self.bleu[system], self.bleu[0])
        ]

    def table(self, unit: str) -> Table:
        """A row for each bucket and one for all sentences: the number of sentences, their share, the systems' BLEU, and
        the differences to the baseline."""
        columns = {unit: "", **SENTENCE_COLUMNS, **dict.fromkeys(self.names, ".1f")}
        columns.update({f"Δ {name}": "+.1f" for name in self.names[1:]})
        total = sum(self.sentences)
        rows: List[List[Cell]] = []
        for place, bucket in enumerate(self.buckets):
            differences = [self.differences(system)[place] for system in range(1, len(self.names))]
            share = 100 * self.sentences[place] / total
            rows.append([bucket, self.sentences[place], share, *(bleu[place] for bleu in self.bleu), *differences])
        rows.append(["all", total, 100.0, *self.total, *(score - self.total[0] for score in self.total[1:])])
        return Table(columns, rows)

    def as_dict(self) -> Dict[str, object]:
        """All scores, for JSON."""
        rows = [
            {"bucket": bucket, "sentences": sentences, "bleu": {n: b[i] for n, b in zip(self.names, self.bleu)}}
            for i, (bucket, sentences) in enumerate(zip(self.buckets, self.sentences))
        ]
        return {"signature": self.signature, "buckets": rows, "all": dict(zip(self.names, self.total))}


def score_buckets(
    systems: Sequence[Tuple[str, Sequence[str]]],
    references: Sequence[Sequence[str]],
    counts: Sequence[int],
    buckets: Buckets,
    metric: BLEU,
) -> BucketScores:
    """BLEU of each system in each bucket.

    Args:
        systems: the name and the translations of each system, the baseline first
        references: one or more translations of the whole text, as sacreBLEU takes them
        counts: for each sentence, the number that decides its bucket
    """
    members: List[List[int]] = [[] for _ in buckets.names]
    for sentence, count in enumerate(counts):
        members[buckets.of(count)].append(sentence)

    def bleu(translations: Sequence[str], chosen: Sequence[int]) -> Optional[float]:
        if not chosen:
            return None
        texts = [[text[sentence] for sentence in chosen] for text in references]
        return float(metric.corpus_score([translations[sentence] for sentence in chosen], texts).score)

    return BucketScores(
        names=[name for name, _ in systems],
        buckets=buckets.names,
        sentences=list(map(len, members)),
        bleu=[[bleu(translations, chosen) for chosen in members] for _, translations in systems],
        total=[float(metric.corpus_score(translations, references).score) for _, translations in systems],
        signature=str(metric.get_signature()),
    )


def bucket_figure(scores: BucketScores, unit: str, title: str) -> Figure:
    """Panels one above the other, with a position for each bucket: the share of the sentences, the BLEU of each system
    and, for several systems, the differences to the first."""
    panels = 3 if len(scores.names) > 1 else 2
    width = max(5.5, 0.45 * len(scores.buckets) * (len(scores.names) + 1))
    figure = new_figure(width, 1.0 + 2.0 * panels)
    axes = figure.subplots(panels, 1, sharex=True, gridspec_kw={"height_ratios": [1, 2, 1.5][:panels]})
    total = sum(scores.sentences)
    for place, count in enumerate(scores.sentences):
        axes[0].bar(place, 100 * count / total, color="lightgrey")
        axes[0].annotate(f"{count}", (place, 100 * count / total), ha="center", va="bottom", fontsize=8)
    axes[0].margins(y=0.25)
    axes[0].set_ylabel("sentences (%)")
    bars(axes[1], scores.buckets, dict(zip(scores.names, scores.bleu)))
    axes[1].set_ylabel("BLEU")
    if panels == 3:
        differences = {name: scores.differences(system) for system, name in enumerate(scores.names)}
        bars(axes[2], scores.buckets, differences)
        axes[2].axhline(0, color="black", linewidth=0.8)
        axes[2].set_ylabel(f"BLEU less\n{scores.names[0]}")
    axes[-1].set_xlabel(unit)
    legend_above(axes[1])
    figure.suptitle(title, fontsize=10)
    return figure


def add_bucket_options(parser: argparse.ArgumentParser, default: str) -> None:
    """Add ``--buckets`` and its alternative, ``--bucket-starts``; both set ``buckets``."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--buckets",
        type=Buckets.parse,
        default=default,
        metavar="LIST",
        help="the last number of each bucket except the last one: 10,20 means 0 to 10, 11 to 20, and more than 20",
    )
    either.add_argument(
        "--bucket-starts",
        dest="buckets",
        type=Buckets.parse_starts,
        default=argparse.SUPPRESS,
        metavar="LIST",
        help="instead of --buckets: the first number of each bucket except the first one: 10,20 means 0 to 9, 10 to "
        "19, and 20 or more",
    )


def read_source(args: argparse.Namespace) -> Tuple[List[str], Dictionary]:
    """The source sentences in the data's tokens, with ``<unk>`` for unknown tokens, and the dictionary.

    Raises:
        UserError: the data directory, split, dictionary or text does not exist, or they do not fit each other or
            ``--remove-bpe``.
    """
    data_dir = first_data_dir(args.data)
    source, target = language_pair(args, data_dir)
    find = Split if args.source else find_split
    split = find(data_dir, args.gen_subset, source, target)
    dictionary = split.load_dictionary(source)
    # The option is also that of the translations and references, which may have marks where the source has none.
    check_subwords(dictionary, split.dictionary_path(source), args.remove_bpe, needs_marks=False)
    if args.source:
        return read_sentences(args.source), dictionary
    rows = list(split.load_language(source))
    if rows:
        split.check_token_ids(source, torch.cat(rows).numpy(), len(dictionary))
    return [dictionary.string(row) for row in rows], dictionary


class BucketAnalysis(Analysis):
    """BLEU by some count over each source sentence, such as its words.

    unit: what is counted, for the table and the figure
    default_bounds: the default bounds of the buckets
    """

    unit: ClassVar[str]
    default_bounds: ClassVar[str]

    @abstractmethod
    def count(self, source: Sequence[str], dictionary: Dictionary, args: argparse.Namespace) -> Sequence[int]:
        """The count for each source sentence; the sentences are in tokens of the dictionary."""

    def add_options(self, parser: CommandParser) -> None:
        """The data, the buckets, the systems and the files to write."""
        add_data_options(
            parser,
            "binarized data directory with the translated split and its dictionaries",
            "default: from the file names",
        )
        add_split_option(parser, "the split that was translated")
        add_file_option(
            parser, "--source", "the source text, in the tokens of the data directory, if it is not one of its splits"
        )
        parser.add_condition("a split, not the text of --source", lambda args: not args.source, "gen_subset")
        add_bucket_options(parser, self.default_bounds)
        add_text_options(parser)
        add_report_options(parser, csv="the table", figure="the buckets")

    def run(self, args: argparse.Namespace) -> Result:
        """Score every system in every bucket."""
        systems, references = read_systems_and_references(args)
        check_columns([name for name, _ in systems], [self.unit, *SENTENCE_COLUMNS])
        source, dictionary = read_source(args)
        text = str(args.source or f"{args.gen_subset} of {args.data}")
        check_length(text, len(source), args.ref[0], len(references[0]))
        # sacreBLEU would warn in every bucket that the text looks tokenized; ``ctxgates analyze compare`` warns once.
        metric = bleu_metric(args, force=True)
        scores = score_buckets(systems, references, self.count(source, dictionary, args), args.buckets, metric)
        table = scores.table(self.unit)
        title = f"{args.source.name if args.source else args.gen_subset}: BLEU by {self.unit}"
        return Result(
            headline=f"BLEU by {self.unit} of {text}: {scores.signature}",
            tables=[table],
            report={"source": text, "unit": self.unit, **scores.as_dict()},
            csv=table,
            figure=lambda: bucket_figure(scores, self.unit, title),
        )

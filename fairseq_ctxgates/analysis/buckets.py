"""BLEU by buckets of the source sentences: what ``bleu-by-length`` and ``bleu-by-unknowns`` have in common.

A system's BLEU in a bucket is the corpus BLEU of the bucket's sentences, by sacreBLEU. The first system is the
baseline, and the others are also shown by their difference to it.
"""

from __future__ import annotations

import argparse
import bisect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from fairseq import utils
from fairseq.data import Dictionary
from sacrebleu.metrics import BLEU

from fairseq_ctxgates.analysis.figures import bars, legend_above, new_figure
from fairseq_ctxgates.analysis.inference import find_split, quiet_logging
from fairseq_ctxgates.analysis.report import Table, add_report_options, check_outputs, write_report
from fairseq_ctxgates.analysis.systems import add_text_options, bleu_metric, check_length, read_sentences, read_texts
from fairseq_ctxgates.commands.options import language_pair
from fairseq_ctxgates.data.data_directory import Split


@dataclass(frozen=True)
class Buckets:
    """Divides numbers at bounds, each the last number of its bucket; what is above the last bound has one more."""

    bounds: Tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Buckets:
        """The buckets of an option's value, such as ``10,20,30``."""
        try:
            bounds = tuple(map(int, text.split(",")))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 10,20,30") from None
        if bounds[0] < 0 or any(low >= high for low, high in zip(bounds, bounds[1:])):
            raise argparse.ArgumentTypeError(f"{text!r} must rise from number to number, from 0 or more")
        return cls(bounds)

    @property
    def names(self) -> List[str]:
        """What each bucket holds: ``≤10``, ``11–20``, ``>20``."""
        first = "0" if self.bounds[0] == 0 else f"≤{self.bounds[0]}"
        between = [
            str(high) if high == low + 1 else f"{low + 1}–{high}" for low, high in zip(self.bounds, self.bounds[1:])
        ]
        return [first, *between, f">{self.bounds[-1]}"]

    def of(self, number: int) -> int:
        """The place of a number's bucket among ``names``."""
        return bisect.bisect_left(self.bounds, number)


@dataclass(frozen=True)
class BucketScores:
    """names: of the systems, the baseline first
    buckets: what each bucket holds
    sentences: how many sentences each bucket has
    bleu: for each system the BLEU in each bucket; None in a bucket without sentences
    total: for each system the BLEU over all
    signature: sacreBLEU's
    """

    names: Sequence[str]
    buckets: Sequence[str]
    sentences: Sequence[int]
    bleu: Sequence[Sequence[Optional[float]]]
    total: Sequence[float]
    signature: str

    def differences(self, system: int) -> List[Optional[float]]:
        """A system's BLEU in each bucket less that of the baseline."""
        return [
            None if score is None or baseline is None else score - baseline
            for score, baseline in zip(self.bleu[system], self.bleu[0])
        ]

    def table(self, unit: str) -> Table:
        """A row for each bucket and one for all: sentences, their share, the systems' BLEU and their differences."""
        columns = {unit: "", "sentences": "", "%": ".1f", **dict.fromkeys(self.names, ".1f")}
        columns.update({f"Δ {name}": "+.1f" for name in self.names[1:]})
        number = sum(self.sentences)
        rows: List[List[Any]] = []
        for place, bucket in enumerate(self.buckets):
            differences = [self.differences(system)[place] for system in range(1, len(self.names))]
            share = 100 * self.sentences[place] / number
            rows.append([bucket, self.sentences[place], share, *(bleu[place] for bleu in self.bleu), *differences])
        rows.append(["all", number, 100.0, *self.total, *(score - self.total[0] for score in self.total[1:])])
        return Table(columns, rows)

    def as_dict(self) -> Dict[str, Any]:
        """Everything, for JSON."""
        rows = [
            {"bucket": bucket, "sentences": sentences, "bleu": {n: b[i] for n, b in zip(self.names, self.bleu)}}
            for i, (bucket, sentences) in enumerate(zip(self.buckets, self.sentences))
        ]
        return {"signature": self.signature, "buckets": rows, "all": dict(zip(self.names, self.total))}


def score_buckets(
    systems: Sequence[Tuple[str, Sequence[str]]],
    references: Sequence[Sequence[str]],
    numbers: Sequence[int],
    buckets: Buckets,
    metric: BLEU,
) -> BucketScores:
    """BLEU of each system in each bucket.

    Args:
        systems: name and translations of each, the baseline first
        references: one or more for each sentence, as sacreBLEU takes them: each a whole text
        numbers: what puts each sentence into its bucket
    """
    members: List[List[int]] = [[] for _ in buckets.names]
    for sentence, number in enumerate(numbers):
        members[buckets.of(number)].append(sentence)

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


def bucket_figure(scores: BucketScores, unit: str, about: str) -> Any:
    """A matplotlib figure of panels one above the other, over the buckets: the share of the sentences, the BLEU of each
    system, and where there are several their differences to the first."""
    panels = 3 if len(scores.names) > 1 else 2
    width = max(5.5, 0.45 * len(scores.buckets) * (len(scores.names) + 1))
    figure = new_figure(width, 1.0 + 2.0 * panels)
    axes = figure.subplots(panels, 1, sharex=True, gridspec_kw={"height_ratios": [1, 2, 1.5][:panels]})
    number = sum(scores.sentences)
    for place, count in enumerate(scores.sentences):
        axes[0].bar(place, 100 * count / number, color="lightgrey")
        axes[0].annotate(f"{count}", (place, 100 * count / number), ha="center", va="bottom", fontsize=8)
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
    figure.suptitle(about, fontsize=10)
    return figure


def get_parser(prog: str, description: str, buckets: str) -> argparse.ArgumentParser:
    """The options of a command that groups sentences, with these buckets as default."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("data", help="binarized data directory that the translated split and its dictionaries are in")
    parser.add_argument("-s", "--source-lang", metavar="SRC", help="source language (found from the files)")
    parser.add_argument("-t", "--target-lang", metavar="TRG", help="target language (found from the files)")
    parser.add_argument("--gen-subset", default="test", metavar="SPLIT", help="the split translated (default: test)")
    parser.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="the source text, in the tokens of the data directory, where it is no split of it",
    )
    parser.add_argument(
        "--buckets",
        type=Buckets.parse,
        default=buckets,
        metavar="LIST",
        help="the last number of each bucket but the last (default: %(default)s)",
    )
    add_text_options(parser)
    add_report_options(parser, csv="the table", figure="the buckets")
    return parser


def read_source(args: argparse.Namespace) -> Tuple[List[str], Dictionary]:
    """The source sentences in the data's tokens, unknown ones as ``<unk>``, and the dictionary.

    Raises:
        UserError: there is no such data directory, split, dictionary or text.
    """
    data_dir = Path(utils.split_paths(args.data)[0])
    languages = language_pair(args, data_dir)
    if args.source:
        dictionary_path = Split(data_dir, args.gen_subset, *languages).dictionary_path(languages[0])
        return read_sentences(args.source), Dictionary.load(str(dictionary_path))
    split = find_split(data_dir, args.gen_subset, *languages)
    dictionary = Dictionary.load(str(split.dictionary_path(languages[0])))
    return [dictionary.string(row) for row in split.load_language(languages[0])], dictionary


def run(args: argparse.Namespace, unit: str, count: Callable[[Sequence[str], Dictionary], Sequence[int]]) -> None:
    """Print the table of one of the commands, and write the files that are asked for.

    Args:
        unit: what is counted, for the table and the figure
        count: the number of each source sentence, from the sentences in tokens and the dictionary
    """
    check_outputs(args)
    quiet_logging()
    systems, references = read_texts(args)
    source, dictionary = read_source(args)
    text = str(args.source or f"{args.gen_subset} of {args.data}")
    check_length(text, len(source), args.ref[0], len(references[0]))
    # sacreBLEU would warn of text that looks tokenized for every bucket; ``ctxgates analyze compare`` lets it.
    metric = bleu_metric(args, force=True)
    scores = score_buckets(systems, references, count(source, dictionary), args.buckets, metric)
    print(f"BLEU by {unit} of {text}: {scores.signature}")
    table = scores.table(unit)
    print(table.text())
    figure = (
        bucket_figure(scores, unit, f"{args.source.name if args.source else args.gen_subset}: BLEU by {unit}")
        if args.figure
        else None
    )
    write_report(args, {"source": text, "unit": unit, **scores.as_dict()}, table, figure)

"""Several systems side by side: BLEU and chrF with paired bootstrap resampling (Koehn 2004), all by sacreBLEU.

``ctxgates analyze compare --ref test.en --sys plain.out gated.out regularized.out --json compare.json``

With ``--documents``, whole documents are scored as well, and the test resamples documents. With ``--segment-scores``,
the same test is applied to the segment scores of any other metric.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
from sacrebleu.metrics import CHRF
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest
from sacrebleu.significance import Result as PairedResult

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import RESAMPLES, Estimate, add_resamples_option
from fairseq_ctxgates.analysis.figures import new_figure, panels
from fairseq_ctxgates.analysis.metrics import (
    SegmentScores,
    SentencesOfDocuments,
    WholeDocuments,
    join_documents,
    read_segment_scores,
)
from fairseq_ctxgates.analysis.options import add_file_option
from fairseq_ctxgates.analysis.report import Cell, Result, Table, add_report_options
from fairseq_ctxgates.analysis.systems import add_text_options, bleu_metric, read_systems_and_references
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.documents import read_document_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SACREBLEUS = ("BLEU", "chrF2", "d-BLEU", "d-chrF2")  # from 0 to 100
FEW = 20  # resamples of fewer sentences or documents vary less than other texts of that size would


@dataclass(frozen=True)
class Score:
    """A system's score by one metric.

    Attributes:
        score: the score of the whole text
        mean: over the resamples
        half_width: half the distance between the 2.5th and the 97.5th percentile of the resamples
        p: how often a difference this large, in this direction, would be drawn if both systems were equal (one-sided);
            None for the baseline, for translations equal to the baseline's, and for a single sentence
    """

    score: float
    mean: float
    half_width: float
    p: Optional[float]

    @property
    def interval(self) -> Tuple[float, float]:
        """The ends of the 95% interval, as sacreBLEU gives it: around the mean of the resamples."""
        return self.mean - self.half_width, self.mean + self.half_width


@dataclass(frozen=True)
class Scores:
    """The scores of several systems by several metrics.

    Attributes:
        names: the names of the systems, the baseline first
        by_metric: for each metric, the scores of the systems
        signatures: for each metric, sacreBLEU's signature
    """

    names: Sequence[str]
    by_metric: Mapping[str, Sequence[Score]]
    signatures: Mapping[str, str]

    def table(self, first_column: str = "system") -> Table:
        """A row for each system."""
        columns = {first_column: ""}
        for metric in self.by_metric:
            spec = ".1f" if metric in SACREBLEUS else ".4f"
            columns.update({metric: spec, f"± {metric}": spec, f"p {metric}": ".4f"})
        rows: List[List[Cell]] = []
        for index, name in enumerate(self.names):
            scores = [systems[index] for systems in self.by_metric.values()]
            rows.append([name, *(value for score in scores for value in (score.score, score.half_width, score.p))])
        return Table(columns, rows)

    def as_dict(self) -> Dict[str, object]:
        """All scores, for JSON."""
        return {
            "signatures": dict(self.signatures),
            "systems": [
                {"system": name, **{metric: vars(systems[index]) for metric, systems in self.by_metric.items()}}
                for index, name in enumerate(self.names)
            ],
        }


def paired_bootstrap(
    systems: Sequence[Tuple[str, Sequence[str]]],
    references: Sequence[Sequence[str]],
    metrics: Mapping[str, Metric],
    resamples: int = RESAMPLES,
) -> Scores:
    """The scores of several systems by sacreBLEU's paired bootstrap test.

    Args:
        systems: the name and the translations of each system, the baseline first
        references: one or more translations of the whole text
        metrics: sacreBLEU's metrics, by name
        resamples: the number of resamples; the seed is sacreBLEU's (12345, or SACREBLEU_SEED from the environment)
    """
    test = PairedTest(
        [(name, list(translations)) for name, translations in systems],
        dict(metrics),
        [list(text) for text in references],
        test_type="bs",
        n_samples=resamples,
    )
    signatures, results = test()
    # All resamples of one segment are the same.
    have_p = [len(references[0]) > 1 and list(text) != list(systems[0][1]) for _, text in systems]
    by_metric = {
        metric: [_score(result, results[metric][0], has_p) for result, has_p in zip(results[metric], have_p)]
        for metric in signatures
    }
    return Scores([name for name, _ in systems], by_metric, {metric: str(signatures[metric]) for metric in signatures})


def _score(result: Union[str, PairedResult], baseline: Union[str, PairedResult], has_p: bool) -> Score:
    assert isinstance(result, PairedResult) and isinstance(baseline, PairedResult)  # only the systems' names are text
    assert result.mean is not None and result.ci is not None
    # Where all resamples are equal to the baseline's, sacreBLEU gives the lowest possible p.
    differs = (result.score, result.mean, result.ci) != (baseline.score, baseline.mean, baseline.ci)
    p = float(result.p_value) if has_p and differs and result.p_value is not None else None
    return Score(float(result.score), float(result.mean), float(result.ci), p)


def comparison_figure(scores: Scores, title: str) -> Figure:
    """A panel for each metric, with a bar and its 95% interval for each system."""
    figure = new_figure(max(3.5, 0.8 + 0.8 * len(scores.names)) * len(scores.by_metric), 3.8)
    by_panel = {
        metric: [Estimate(system.score, *system.interval) for system in systems]
        for metric, systems in scores.by_metric.items()
    }
    panels(figure, scores.names, by_panel, title)
    return figure


def metric_and_file(text: str) -> Tuple[str, Path]:
    """The value ``METRIC=FILE`` of an option."""
    metric, is_there, path = text.partition("=")
    if not metric or not is_there or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form METRIC=FILE")
    if metric in (*SACREBLEUS, "system"):
        raise argparse.ArgumentTypeError(f"{text!r}: the table has a column {metric}, give the metric another name")
    return metric, Path(path)


def read_other_metrics(args: argparse.Namespace, sentences: int) -> Dict[str, List[List[str]]]:
    """The scores of ``--segment-scores``: for each metric name, a list of sentence scores for each system.

    Raises:
        UserError: a file does not fit, or a metric does not have one file for each system.
    """
    metrics: Dict[str, List[List[str]]] = {}
    for metric, path in args.segment_scores:
        metrics.setdefault(metric, []).append(read_segment_scores(path, sentences, args.ref[0]))
    for metric, scores in metrics.items():
        if len(scores) != len(args.sys):
            raise UserError(
                f"--segment-scores: {len(scores)} files for {metric}, but --sys has {len(args.sys)} systems: give one "
                f"for each, in their order"
            )
    return metrics


def read_documents(args: argparse.Namespace, reference: Sequence[str]) -> Optional[np.ndarray]:
    """The number of each sentence's document, (sentences,), or None without ``--documents``.

    Raises:
        UserError: the file does not fit, or names only one document, so that all resamples would be the same.
    """
    if args.documents is None:
        return None
    documents = read_document_names(args.documents, np.array([not line for line in reference]), args.ref[0])
    if len(np.unique(documents)) == 1:
        raise UserError(
            f"--documents {args.documents}: it names one document, and documents are resampled: leave out --documents, "
            f"to resample sentences"
        )
    return documents


def score_systems(
    systems: Sequence[Tuple[str, Sequence[str]]],
    references: Sequence[Sequence[str]],
    others: Mapping[str, Sequence[Sequence[str]]],
    documents: Optional[np.ndarray],
    args: argparse.Namespace,
) -> Scores:
    """The scores by all metrics.

    Args:
        systems: the name and the translations of each system
        others: from :func:`read_other_metrics`
        documents: from :func:`read_documents`
    """
    metrics: Dict[str, Any] = {"BLEU": bleu_metric(args), "chrF": CHRF(lowercase=args.lowercase)}
    segment_scores: Dict[str, Any] = {name: SegmentScores(name) for name in others}
    if documents is not None:
        metrics = {
            **{name: SentencesOfDocuments(metric) for name, metric in metrics.items()},
            **{f"d-{name}": WholeDocuments(metric) for name, metric in metrics.items()},
        }
        segment_scores = {name: SentencesOfDocuments(metric) for name, metric in segment_scores.items()}
        systems = [(name, join_documents(lines, documents)) for name, lines in systems]
        references = [join_documents(lines, documents) for lines in references]
        others = {name: [join_documents(lines, documents) for lines in given] for name, given in others.items()}
    scores = paired_bootstrap(systems, references, metrics, args.resamples)
    for name, given in others.items():
        metric = {name: segment_scores[name]}
        scored = paired_bootstrap(list(zip(scores.names, given)), references, metric, args.resamples)
        scores = Scores(
            scores.names, {**scores.by_metric, **scored.by_metric}, {**scores.signatures, **scored.signatures}
        )
    return scores


class ComparisonAnalysis(Analysis):
    """BLEU and chrF of several systems, with 95% intervals and p, how often a system that is as good as the first would
    be so much better (or, where it is worse, so much worse) by chance, by sacreBLEU's paired bootstrap test. This p is
    one-sided, about half of a two-sided one. With --documents, each document is also scored as a single segment
    (d-BLEU, d-chrF2), and the test resamples documents.
    """

    name = "compare"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The systems, the references, the test and the files to write."""
        add_text_options(parser)
        add_resamples_option(parser)
        add_file_option(
            parser,
            "--documents",
            "file with the name of each sentence's document, one line for each sentence: also score whole documents, "
            "and resample documents instead of sentences",
        )
        parser.add_argument(
            "--segment-scores",
            type=metric_and_file,
            action="extend",
            nargs="+",
            default=[],
            metavar="METRIC=FILE",
            help="another metric's score of each sentence: one number per line, or the output of comet-score. Give "
            "each metric one file for each system, in the order of the systems",
        )
        add_report_options(parser, csv="the table", figure="the scores")

    def run(self, args: argparse.Namespace) -> Result:
        """Score and test the systems."""
        systems, references = read_systems_and_references(args)
        others = read_other_metrics(args, len(references[0]))
        documents = read_documents(args, references[0])
        scores = score_systems(systems, references, others, documents, args)
        table = scores.table()
        size = f"{len(references[0])} sentences"
        unit, number = "sentences", len(references[0])
        if documents is not None:
            unit, number = "documents", len(np.unique(documents))
            size += f" in {number} documents, which were resampled"
        title = f"{args.ref[0].name}, {size}, 95% intervals"
        return Result(
            tables=[table],
            report={**scores.as_dict(), "resampled": {"unit": unit, "number": number}},
            csv=table,
            figure=lambda: comparison_figure(scores, title),
            footer=[
                *([title] if documents is not None else []),
                *([f"few {unit} ({number}): the intervals are too narrow, and p is too small"] if number < FEW else []),
                *(f"{metric}: {signature}" for metric, signature in scores.signatures.items()),
            ],
        )

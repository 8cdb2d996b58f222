"""Several systems side by side: BLEU and chrF with paired bootstrap resampling (Koehn 2004), all by sacreBLEU.

``ctxgates analyze compare --ref test.en --sys plain.out gated.out regularized.out --json compare.json``
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest

from fairseq_ctxgates.analysis.bootstrap import RESAMPLES
from fairseq_ctxgates.analysis.figures import new_figure, panels
from fairseq_ctxgates.analysis.inference import quiet_logging
from fairseq_ctxgates.analysis.report import Table, add_report_options, check_outputs, write_report
from fairseq_ctxgates.analysis.systems import add_text_options, bleu_metric, read_texts
from fairseq_ctxgates.commands.options import positive


@dataclass(frozen=True)
class Score:
    """A system's score: of the whole text, and the mean and half the width of the 95% interval over the resamples; p is
    the probability of so large a difference to the baseline by chance, None for the baseline and what is equal to it.
    """

    score: float
    mean: float
    half_width: float
    p: Optional[float]

    @property
    def interval(self) -> Tuple[float, float]:
        """The ends of the 95% interval."""
        return self.mean - self.half_width, self.mean + self.half_width


@dataclass(frozen=True)
class Scores:
    """names: of the systems, the baseline first
    by_metric: for each metric the scores of the systems
    signatures: sacreBLEU's, for each metric
    """

    names: Sequence[str]
    by_metric: Mapping[str, Sequence[Score]]
    signatures: Mapping[str, str]

    def table(self, first_column: str = "system") -> Table:
        """A row for each system."""
        columns = {first_column: ""}
        for metric in self.by_metric:
            columns.update({metric: ".1f", f"± {metric}": ".1f", f"p {metric}": ".4f"})
        rows: List[List[Any]] = []
        for number, name in enumerate(self.names):
            scores = [systems[number] for systems in self.by_metric.values()]
            rows.append([name, *(value for score in scores for value in (score.score, score.half_width, score.p))])
        return Table(columns, rows)

    def as_dict(self) -> Dict[str, Any]:
        """Everything, for JSON."""
        return {
            "signatures": dict(self.signatures),
            "systems": [
                {"system": name, **{metric: vars(systems[number]) for metric, systems in self.by_metric.items()}}
                for number, name in enumerate(self.names)
            ],
        }


def compare(
    systems: Sequence[Tuple[str, Sequence[str]]],
    references: Sequence[Sequence[str]],
    metrics: Mapping[str, Any],
    resamples: int = RESAMPLES,
) -> Scores:
    """The scores of systems, each (name, translations), the baseline first, by sacreBLEU's paired bootstrap test.

    Args:
        references: one or more, each a whole text
        metrics: sacreBLEU's, by name
        resamples: of the sentences; their seed is sacreBLEU's (12345, or SACREBLEU_SEED from the environment)
    """
    test = PairedTest(
        [(name, list(translations)) for name, translations in systems],
        dict(metrics),
        [list(text) for text in references],
        test_type="bs",
        n_samples=resamples,
    )
    signatures, results = test()
    # Of translations that are the baseline's own, sacreBLEU says the lowest p there is.
    is_other = [list(translations) != list(systems[0][1]) for _, translations in systems]
    by_metric = {metric: [_score(result, p) for result, p in zip(results[metric], is_other)] for metric in signatures}
    return Scores([name for name, _ in systems], by_metric, {metric: str(signatures[metric]) for metric in signatures})


def _score(result: Any, has_p: bool) -> Score:
    p = float(result.p_value) if has_p else None
    return Score(float(result.score), float(result.mean), float(result.ci), p)


def comparison_figure(scores: Scores, about: str) -> Any:
    """A matplotlib figure: a panel for each metric, in it a bar for each system with its 95% interval."""
    figure = new_figure(max(3.5, 0.8 + 0.8 * len(scores.names)) * len(scores.by_metric), 3.8)
    drawn = {
        metric: [(system.score, system.interval) for system in systems] for metric, systems in scores.by_metric.items()
    }
    panels(figure, scores.names, drawn, about)
    return figure


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="ctxgates analyze compare",
        description="BLEU and chrF of several systems, with 95% intervals and the probability p that a system differs "
        "so much from the first by chance: sacreBLEU's paired bootstrap test.".replace("%", "%%"),
    )
    add_text_options(parser)
    parser.add_argument(
        "--resamples", type=positive, default=RESAMPLES, metavar="N", help="bootstrap resamples (default: %(default)s)"
    )
    add_report_options(parser, csv="the table", figure="the scores")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print the table and sacreBLEU's signatures; write the files that are asked for."""
    args = get_parser().parse_args(argv)
    check_outputs(args)
    quiet_logging()
    systems, references = read_texts(args)
    metrics = {
        "BLEU": bleu_metric(args),
        "chrF": CHRF(lowercase=args.lowercase),
    }
    scores = compare(systems, references, metrics, args.resamples)
    table = scores.table()
    print(table.text())
    for metric, signature in scores.signatures.items():
        print(f"{metric}: {signature}")
    about = f"{args.ref[0].name}, {len(references[0])} sentences, 95% intervals"
    write_report(args, scores.as_dict(), table, comparison_figure(scores, about) if args.figure else None)

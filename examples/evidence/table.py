"""The results of a part: a table with the mean and the spread over seeds, tests of the differences, learning curves.

A seed is read only after all its systems have been trained, translated and compared.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
from sacrebleu.metrics import CHRF
from sacrebleu.metrics.base import Metric

from evidence.commands import COMPARISON, PartCommands, system_folder
from evidence.plan import Part, Plan
from fairseq_ctxgates.analysis.bootstrap import RESAMPLES
from fairseq_ctxgates.analysis.figures import legend_above, line_look, new_figure
from fairseq_ctxgates.analysis.report import MISSING, Cell, Result, Table
from fairseq_ctxgates.analysis.systems import bleu_metric, read_references
from fairseq_ctxgates.data.subwords import join_subwords
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import read_lines
from runner import read_record, slug

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("BLEU", "chrF2")
STOPPED_EARLY = "early stop since valid performance hasn't improved"  # in the log of fairseq-train


class Validation(NamedTuple):
    """The validation losses after a number of updates, in bits per token: ``loss`` chooses the best checkpoint; ``nll``
    is without label smoothing."""

    updates: int
    loss: float
    nll: float


@dataclass(frozen=True)
class Training:
    """What the log of a training says.

    Attributes:
        curve: the validations in their order, but for those whose loss is not finite
        has_converged: whether training stopped because the validation loss did not improve any more
        seconds: wall-clock seconds, over all runs of an interrupted training
    """

    curve: Sequence[Validation]
    has_converged: bool
    seconds: float

    @property
    def best(self) -> Validation:
        """The validation whose model was kept."""
        return min(reversed(self.curve), key=lambda validation: validation.loss)


def read_training(directory: Path, folder: str) -> Training:
    """The training in a folder; UserError if it was never validated, or if it diverged."""
    log = (directory / folder / "train.log").read_text(encoding="utf-8", errors="replace")
    curve = {}  # a training that was interrupted may validate twice after the same updates
    for line in re.findall(r"\| valid \| (\{.*\})", log):
        report = json.loads(line)
        updates = int(report["valid_num_updates"])
        loss = float(report["valid_loss"])
        if math.isfinite(loss):
            # fairseq's cross_entropy logs one number for both.
            curve[updates] = Validation(updates, loss, float(report.get("valid_nll_loss", loss)))
    if not curve:
        raise UserError(f"{folder}/train.log has no finite loss on valid: did the training diverge?")
    has_converged = log.rfind(STOPPED_EARLY) > log.rfind("| valid | ")  # and training did not go on
    record = read_record(directory, f"{folder}/train.log")
    assert record is not None  # since the training is finished
    return Training([curve[updates] for updates in sorted(curve)], has_converged, record.seconds)


def mixed_bootstrap(
    baseline: np.ndarray, system: np.ndarray, metric: Metric, resamples: int = RESAMPLES, seed: int = 12345
) -> float:
    """How often a difference at least as large as that between two systems, each trained with n seeds, would be seen in
    either direction if both were equally good.

    A resample draws sentences, the same for both systems and all seeds, and computes the difference of the systems'
    mean scores over the seeds. Trainings with other seeds would have changed this difference too. Two or three seeds
    are too few to draw from, so that change is drawn from Student's distribution with n - 1 degrees of freedom, times
    the standard error of the seeds' differences. p is the share of resamples that are at least as far from the mean of
    the resampled sentences' differences, to either side, as the observed difference is from zero. sacreBLEU's paired
    bootstrap counts one side, which is about half of that.

    Args:
        baseline, system: sufficient statistics of the metric, (seeds, sentences, quantities)
    """
    rng = np.random.default_rng(seed)
    seeds, sentences = baseline.shape[:2]

    def differences(times: np.ndarray) -> np.ndarray:
        """The difference of each seed, (seeds,), if each sentence is there so many times, (sentences,)."""
        pairs = zip(times @ system, times @ baseline)
        scores = [[metric._compute_score_from_stats(sums).score for sums in pair] for pair in pairs]
        return np.subtract(*np.transpose(scores))

    def resample() -> float:
        times = np.bincount(rng.integers(sentences, size=sentences), minlength=sentences)
        return float(differences(times).mean())

    observed = differences(np.ones(sentences, int))
    resampled = np.array([resample() for _ in range(resamples)])
    deviations = resampled - resampled.mean()
    if seeds > 1:
        deviations += observed.std(ddof=1) / np.sqrt(seeds) * rng.standard_t(seeds - 1, size=resamples)
    as_far = np.abs(deviations) >= abs(observed.mean())
    return float((as_far.sum() + 1) / (resamples + 1))


@dataclass(frozen=True)
class Row:
    """A system or a variant of one, over the seeds.

    Attributes:
        trainings: one for each seed; a variant has none
        scores: for each metric, the score of each seed
        half_widths: half the width of the 95% interval over the sentences, for each metric and seed
        p_values: p of the difference to the baseline, for each metric and seed; None for the baseline
        p_over_seeds: for each metric, p by :func:`mixed_bootstrap`; None for the baseline, and with one seed
        statistics: for each heading of a column, the value of the measure for each seed
    """

    name: str
    trainings: Sequence[Training]
    scores: Mapping[str, Sequence[float]]
    half_widths: Mapping[str, Sequence[float]]
    p_values: Mapping[str, Sequence[Optional[float]]]
    p_over_seeds: Mapping[str, Optional[float]]
    statistics: Mapping[str, Sequence[Optional[float]]]

    def cells(self, headings: Sequence[str]) -> List[Cell]:
        """The row of the table; the headings are those of the statistics."""
        best = [training.best for training in self.trainings]
        row: List[Cell] = [
            self.name,
            mean([validation.updates for validation in best]),
            mean([validation.nll for validation in best]),
            "/".join("yes" if training.has_converged else "no" for training in self.trainings) or None,
            mean([training.seconds for training in self.trainings]),
        ]
        for metric in METRICS:
            row += [mean(self.scores[metric]), mean(self.half_widths[metric]), deviation(self.scores[metric])]
            p_values = self.p_values[metric]
            by_seed = "/".join(MISSING if p is None else format(p, ".3f") for p in p_values)
            row += [by_seed if any(p is not None for p in p_values) else None, self.p_over_seeds[metric]]
        measured = [self.statistics.get(heading, []) for heading in headings]
        return [*row, *(cell for values in measured for cell in (mean(values), deviation(values)))]

    def as_dict(self) -> Dict[str, object]:
        """All numbers, for JSON."""
        trainings = [
            {"curve": training.curve, "converged": training.has_converged, "seconds": training.seconds}
            for training in self.trainings
        ]
        return {**vars(self), "trainings": trainings}


def mean(values: Sequence[Optional[float]]) -> Optional[float]:
    """The mean of the values that exist."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None


def deviation(values: Sequence[Optional[float]]) -> Optional[float]:
    """The standard deviation over seeds of the values that exist; None for fewer than two values."""
    found = [value for value in values if value is not None]
    return float(np.std(found, ddof=1)) if len(found) > 1 else None


class PartResults:
    """The results of the finished seeds of a part.

    Args:
        seeds: the seeds to look for
        directory: the folder of all experiments

    Attributes:
        seeds: the seeds that are finished
    """

    def __init__(self, commands: PartCommands, plan: Plan, seeds: Sequence[int], directory: Path) -> None:
        self._commands, self._plan, self._directory = commands, plan, directory
        self._part: Part = plan.parts[commands.name]
        self.seeds = [seed for seed in seeds if commands.is_finished(seed, directory)]

    def rows(self) -> List[Row]:
        """A row for each scored system and each variant."""
        compared = [self._comparison(seed) for seed in self.seeds]
        metrics = self._metrics()
        statistics = {name: self._statistics(metric) for name, metric in metrics.items()} if len(compared) > 1 else {}
        rows = []
        for index, name in enumerate(self._part.rows):
            scores = [comparison["systems"][index] for comparison in compared]
            system = self._part.systems.get(name)
            trainings = [
                read_training(self._directory, system_folder(self._commands.name, seed, name))
                for seed in self.seeds
                if system
            ]
            p_over_seeds = {
                metric: mixed_bootstrap(statistics[metric][0], statistics[metric][index], metrics[metric])
                if index and statistics
                else None
                for metric in METRICS
            }
            rows.append(
                Row(
                    name,
                    trainings=trainings,
                    scores={metric: [score[metric]["score"] for score in scores] for metric in METRICS},
                    half_widths={metric: [score[metric]["half_width"] for score in scores] for metric in METRICS},
                    p_values={metric: [score[metric]["p"] for score in scores] for metric in METRICS},
                    p_over_seeds=p_over_seeds,
                    statistics=self._measured(name) if system else {},
                )
            )
        return rows

    def _comparison(self, seed: int) -> Any:
        """What ``ctxgates analyze compare`` found."""
        return self._load(system_folder(self._commands.name, seed), COMPARISON)

    def _metrics(self) -> Dict[str, Metric]:
        scoring = self._scoring
        return {"BLEU": bleu_metric(scoring), "chrF2": CHRF(lowercase=scoring.lowercase)}

    @property
    def _scoring(self) -> argparse.Namespace:
        reference = self._directory / self._commands.corpus.reference
        return self._plan.corpora[self._part.corpus].scoring_options(reference)

    def _statistics(self, metric: Metric) -> List[np.ndarray]:
        """The sufficient statistics of each row, (seeds, sentences, quantities)."""
        scoring = self._scoring
        references = read_references(scoring)
        found = []
        for row in self._part.rows:
            paths = [self._directory / self._commands.translations(seed, row) for seed in self.seeds]
            texts = [join_subwords(read_lines(path), scoring.remove_bpe) for path in paths]
            found.append(np.array([metric._extract_corpus_statistics(text, references) for text in texts]))
        return found

    def _measured(self, system: str) -> Dict[str, List[Optional[float]]]:
        found: Dict[str, List[Optional[float]]] = {}
        for measure in self._part.systems[system].measures:
            for heading, path in self._plan.measures[measure].columns.items():
                folders = [system_folder(self._commands.name, seed, system) for seed in self.seeds]
                found[heading] = [look_up(self._load(folder, f"{slug(measure)}.json"), path) for folder in folders]
        return found

    def _load(self, folder: str, name: str) -> Any:
        return json.loads((self._directory / folder / name).read_text(encoding="utf-8"))

    def result(self) -> Result:
        """The table, its numbers and the learning curves."""
        rows = self.rows()
        signatures: Mapping[str, str] = self._comparison(self.seeds[0])["signatures"]
        headings = list(dict.fromkeys(heading for row in rows for heading in row.statistics))
        columns = {"system": "", "updates": ".0f", "nll": ".3f", "converged": "", "seconds": ".0f"}
        for metric in METRICS:
            columns.update({metric: ".1f", f"± {metric}": ".1f", f"s.d. {metric}": ".2f"})
            columns.update({f"p {metric}": "", f"p of all {metric}": ".3f"})
        for heading in headings:
            columns.update({heading: ".3f", f"s.d. {heading}": ".3f"})
        table = Table(columns, [row.cells(headings) for row in rows])
        seeds = ", ".join(map(str, self.seeds))
        return Result(
            tables=[without_empty_columns(table)],
            report={
                "part": self._commands.name,
                "question": self._part.question,
                "seeds": self.seeds,
                "signatures": signatures,
                "rows": [row.as_dict() for row in rows],
            },
            csv=table,
            figure=lambda: curves_figure(rows, f"{self._commands.name}: nll on valid"),
            headline=f"{self._commands.name} (test of {self._part.corpus}, seeds {seeds}): {self._part.question}",
            footer=[
                "means over the seeds; ±: half of the 95% interval within a seed; s.d.: standard deviation over seeds",
                f"p: of the difference to {rows[0].name}, by sacreBLEU's paired bootstrap within each seed, one-sided",
                "   (of equal systems about one in nine has p < 0.05, in the one direction or the other)",
                "p of all: by a bootstrap over sentences, with Student's t over seeds (two-sided)",
                "updates and nll (on valid, in bits a token): of the best validation; converged: stopped by --patience",
                "seconds: by the clock, with other trainings at the same time",
                *(f"{metric}: {signature}" for metric, signature in signatures.items()),
            ],
        )


def without_empty_columns(table: Table) -> Table:
    """The table without the columns that have no value in any row."""
    kept = [place for place in range(len(table.columns)) if any(row[place] is not None for row in table.rows)]
    columns = list(table.columns.items())
    return Table(dict(columns[place] for place in kept), [[row[place] for place in kept] for row in table.rows])


def look_up(report: Any, path: str) -> Optional[float]:
    """The number in a JSON report to which keys lead, joined by dots; a key of a list is a position.

    Raises:
        UserError: there is no such key
    """
    found = report
    for key in path.split("."):
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise UserError(f"the plan's column {path!r} is not in the measure's JSON: there is no {key!r}") from error
    return None if found is None else float(found)


def curves_figure(rows: Sequence[Row], title: str) -> Figure:
    """The nll on valid, without label smoothing, by the number of updates, a line for each system and seed."""
    figure = new_figure(7.0, 4.2)
    axes = figure.add_subplot()
    trained = [row for row in rows if row.trainings]
    for index, row in enumerate(trained):
        for seed, training in enumerate(row.trainings):
            updates, _, nll = zip(*training.curve)
            axes.plot(updates, nll, marker=".", label=row.name if seed == 0 else None, **line_look(index))
    axes.set_xlabel("updates")
    axes.set_ylabel("nll (bits a token)")
    legend_above(axes)
    figure.suptitle(title, fontsize=10)
    return figure

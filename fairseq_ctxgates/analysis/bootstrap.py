"""Bootstrap confidence intervals of statistics that are functions of sums over sentences (Efron 1979; Koehn 2004)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Callable, Dict, Optional

import numpy as np

from fairseq_ctxgates.analysis.report import MISSING, format_number
from fairseq_ctxgates.command_line import positive, seed

RESAMPLES = 1000
COVERAGE = 0.95


def add_resamples_option(parser: argparse.ArgumentParser, purpose: str = "") -> None:
    """``--resamples``: how many bootstrap resamples are drawn."""
    parser.add_argument(
        "--resamples",
        type=positive,
        default=RESAMPLES,
        metavar="N",
        help=f"bootstrap resamples{purpose}",
    )


def add_bootstrap_options(parser: argparse.ArgumentParser, drawn: str = "sentences", seeded: str = "") -> None:
    """Add the number of resamples of :func:`bootstrap`, and their seed.

    Args:
        drawn: what is resampled
        seeded: what else the seed is used for
    """
    add_resamples_option(parser, f" of the {drawn}, for the 95%% intervals")
    help_text = f"seed of the resamples{seeded}"
    parser.add_argument("--seed", type=seed, default=1, metavar="N", help=help_text)


@dataclass(frozen=True)
class Estimate:
    """A value and the two ends of its confidence interval; each is None if it is undefined (0/0)."""

    value: Optional[float]
    low: Optional[float]
    high: Optional[float]

    def as_percent(self) -> Estimate:
        """The estimate of a fraction in percent."""
        return Estimate(*(None if end is None else 100 * end for end in (self.value, self.low, self.high)))

    def text(self, spec: str) -> str:
        """The value and, if it is defined, its interval, each number formatted by :func:`format_number`:
        ``40.5 [39.8, 41.2]``."""
        if self.value is None:
            return MISSING
        if self.low is None or self.high is None:
            return format_number(self.value, spec)
        value, low, high = (format_number(number, spec) for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"

    def as_dict(self, name: str) -> Dict[str, Optional[float]]:
        """The three numbers as ``name``, ``name_low`` and ``name_high``, for JSON and CSV."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def bootstrap(
    sums: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], resamples: int = RESAMPLES, seed: int = 1
) -> Estimate:
    """A statistic over a set of sentences, with its percentile interval over bootstrap resamples of the sentences.

    The resamples depend only on the seed and the number of sentences, so the intervals of several systems are paired.
    For the interval of a difference, the statistic takes the sums of both systems.

    Args:
        sums: what each sentence adds to each quantity, (sentences, quantities)
        statistic: maps sums over sentences, (..., quantities), to values, (...); NaN if it is undefined
    """
    rng = np.random.default_rng(seed)
    count = len(sums)
    counts = (np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(resamples))
    values = statistic(np.stack([times @ sums for times in counts]))
    tail = (1 - COVERAGE) / 2
    ends = np.quantile(values, [tail, 1 - tail]) if np.isfinite(values).all() else (np.nan, np.nan)
    return Estimate(*(float(x) if np.isfinite(x) else None for x in (statistic(sums.sum(axis=0)), *ends)))


def ratio(sums: np.ndarray, numerator: int, denominator: int) -> np.ndarray:
    """The quotient of two of the quantities of :func:`bootstrap`, (...); NaN for 0/0."""
    with np.errstate(invalid="ignore"):
        return np.asarray(sums[..., numerator] / sums[..., denominator])


def bootstrap_mean(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 1) -> Estimate:
    """The mean of values, (values,), with its interval over resamples of the values."""
    sums = np.stack([values, np.ones(len(values))], axis=1)
    return bootstrap(sums, lambda totals: ratio(totals, 0, 1), resamples, seed)

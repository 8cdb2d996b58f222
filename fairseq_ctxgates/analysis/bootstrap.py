"""Bootstrap intervals of figures that are computed from sums over sentences (Efron 1979; Koehn 2004)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Callable, Dict, Optional

import numpy as np

from fairseq_ctxgates.analysis.report import MISSING, shown
from fairseq_ctxgates.commands.options import positive

RESAMPLES = 1000
COVERAGE = 0.95


def add_bootstrap_options(parser: argparse.ArgumentParser) -> None:
    """How many resamples are drawn, and from which seed."""
    parser.add_argument(
        "--resamples",
        type=positive,
        default=RESAMPLES,
        metavar="N",
        help="bootstrap resamples of the sentences, for the 95%% intervals (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the resamples (default: %(default)s)")


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its interval; None where it is undefined (0/0)."""

    value: Optional[float]
    low: Optional[float]
    high: Optional[float]

    def times(self, factor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(*(None if end is None else factor * end for end in (self.value, self.low, self.high)))

    def text(self, spec: str) -> str:
        """The figure and its interval, each number as :func:`shown` shows it: ``40.5 [39.8, 41.2]``."""
        if self.value is None or self.low is None or self.high is None:
            return MISSING
        return f"{shown(self.value, spec)} [{shown(self.low, spec)}, {shown(self.high, spec)}]"

    def as_dict(self, name: str) -> Dict[str, Optional[float]]:
        """Under the names ``name``, ``name_low`` and ``name_high``, for JSON and CSV."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def bootstrap(
    sums: np.ndarray, figure: Callable[[np.ndarray], np.ndarray], resamples: int = RESAMPLES, seed: int = 1
) -> Estimate:
    """A figure over a set of sentences, with its percentile interval over resamples of them.

    The same seed and number of sentences give the same resamples, so that the intervals of several systems are paired;
    that of a difference is the interval of a figure over both systems' sums.

    Args:
        sums (sentences, quantities): what each sentence adds to each quantity
        figure: the figure from sums over sentences, (..., quantities) to (...); NaN where it is undefined
    """
    rng = np.random.default_rng(seed)
    number = len(sums)
    drawn = (np.bincount(rng.integers(number, size=number), minlength=number) for _ in range(resamples))
    values = figure(np.stack([times @ sums for times in drawn]))
    tail = (1 - COVERAGE) / 2
    ends = np.quantile(values, [tail, 1 - tail]) if np.isfinite(values).all() else (np.nan, np.nan)
    return Estimate(*(float(x) if np.isfinite(x) else None for x in (figure(sums.sum(axis=0)), *ends)))

"""What the analyses' pictures share: their make, and the two kinds of chart that several of them draw."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

import numpy as np

DOTS_PER_INCH = 150
# Colours that also readers who do not see red and green can tell apart (Okabe and Ito 2008), the baseline's first.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size in inches, which needs no display. matplotlib is loaded here, because it
    takes longer than some analyses."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, constrained_layout=True)
    FigureCanvasAgg(figure)
    return figure


def bars(
    axes: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Optional[float]]],
    intervals: Optional[Mapping[str, Sequence[Tuple[Optional[float], Optional[float]]]]] = None,
) -> None:
    """Draw grouped bars, a group for each name of ``groups``, in it a bar for each of the series; no bar for None.

    Args:
        series: a value for each group, by the name that the legend has
        intervals: the ends of each bar's interval, which is drawn over it
    """
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        positions = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
        heights = np.array(values, float)  # None becomes NaN, which is not drawn
        errors = None
        if intervals is not None:
            low, high = np.array(intervals[name], float).T
            errors = np.maximum([heights - low, high - heights], 0)  # of means over resamples they can be negative
        axes.bar(positions, heights, width, label=name, color=colour(number), yerr=errors, capsize=3)
    axes.set_xticks(range(len(groups)))
    axes.set_xticklabels(groups)
    axes.set_xlim(-0.6, len(groups) - 0.4)


def colour(number: int) -> str:
    """The colour of a series by its number."""
    return COLOURS[number % len(COLOURS)]


def legend_above(axes: Any, columns: int = 3) -> None:
    """A legend above the axes, where it covers nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=columns, frameon=False, fontsize=9)

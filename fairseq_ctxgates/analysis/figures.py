"""What the analyses' pictures share: their make, and the kinds of chart and axis that several of them draw."""

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


def panels(
    figure: Any,
    names: Sequence[str],
    scores: Mapping[str, Sequence[Tuple[Optional[float], Tuple[Optional[float], Optional[float]]]]],
    about: str,
) -> None:
    """Fill a figure with a panel for each kind of score, since they are of different size: in it a bar for each system.

    Args:
        names: of the systems
        scores: by the name of the panel, each system's score and the ends of its interval
        about: what stands above all
    """
    for axes, (panel, values) in zip(figure.subplots(1, len(scores), squeeze=False)[0], scores.items()):
        bars(
            axes,
            [panel],
            {name: [score] for name, (score, _) in zip(names, values)},
            {name: [interval] for name, (_, interval) in zip(names, values)},
        )
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncol=3, frameon=False, fontsize=9)
    figure.suptitle(about, fontsize=10)


def token_width(tokens: int) -> float:
    """How many inches wide a figure is whose horizontal axis has so many tokens."""
    return min(max(7.0, 0.42 * tokens + 1.5), 24.0)


def label_tokens(axes: Any, tokens: Sequence[str]) -> None:
    """Write the tokens below the horizontal axis, the first at 0."""
    axes.set_xticks(range(len(tokens)))
    axes.set_xticklabels(tokens, rotation=45, ha="right", rotation_mode="anchor")


def colour(number: int) -> str:
    """The colour of a series by its number."""
    return COLOURS[number % len(COLOURS)]


def legend_above(axes: Any, columns: int = 3) -> None:
    """A legend above the axes, where it covers nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=columns, frameon=False, fontsize=9)

"""Charts and axes that several analyses draw with matplotlib."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fairseq_ctxgates.analysis.bootstrap import Estimate  # whose module imports this one

logger = logging.getLogger(__name__)

DOTS_PER_INCH = 150
# Colours that readers with red-green colour blindness can tell apart (Okabe and Ito 2008); the baseline has the first.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
# Patterns that distinguish series of the same colour: from the ninth series on, colours repeat.
HATCHES = ("", "////", "....")
LINE_STYLES = ("-", "--", ":")

Interval = Tuple[Optional[float], Optional[float]]


# Fonts with the characters of Chinese, Japanese and Korean. Most systems have one of them.
WIDE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP", "Source Han Sans SC"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "IPAGothic", "Unifont"),
    *("PingFang SC", "Hiragino Sans", "Microsoft YaHei", "SimHei", "Arial Unicode MS"),
)


def new_figure(width: float, height: float) -> Figure:
    """An empty matplotlib figure of this size in inches; drawing it needs no display.

    matplotlib is imported here, because importing it takes longer than some analyses.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, constrained_layout=True)
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def text_as_it_is() -> Iterator[None]:
    """In this block, figures show text literally: a ``$`` does not begin a formula, and characters that matplotlib's
    own font lacks are taken from an installed font. If no font has them, a warning says what to install."""
    import matplotlib
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = [*matplotlib.rcParams["font.family"], *(font for font in WIDE_FONTS if font in installed)]
    with matplotlib.rc_context({"text.parse_math": False, "font.family": fonts}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    missing = [warning for warning in caught if "missing from" in str(warning.message)]
    if missing:
        logger.warning(
            "no installed font has %d characters of a figure, which are drawn as boxes: install a font that has them, "
            "such as Noto Sans CJK for Chinese, Japanese and Korean (Debian's package fonts-noto-cjk)",
            len({str(warning.message) for warning in missing}),
        )
    for warning in caught:
        if warning not in missing:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def bars(
    axes: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Optional[float]]],
    intervals: Optional[Mapping[str, Sequence[Interval]]] = None,
) -> None:
    """Draw grouped bars: for each name in ``groups``, a group with one bar per series. A value of None draws no bar.

    Args:
        series: a value for each group, by the series' name in the legend
        intervals: the ends of each bar's confidence interval, drawn over the bar
    """
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        positions = np.arange(len(groups)) + (index - (len(series) - 1) / 2) * width
        heights = np.array(values, float)  # None becomes NaN, which is not drawn
        errors = None
        if intervals is not None:
            errors = np.transpose(list(map(error_bar, heights, intervals[name])))
        axes.bar(positions, heights, width, label=name, yerr=errors, capsize=3, **bar_look(index))
    axes.set_xticks(range(len(groups)))
    axes.set_xticklabels(groups)
    axes.set_xlim(-0.6, len(groups) - 0.4)


def error_bar(height: float, interval: Interval) -> Tuple[float, float]:
    """How far a confidence interval reaches below and above a value; a bootstrap interval may not contain the value."""
    low, high = np.array(interval, float)
    return max(height - low, 0.0), max(high - height, 0.0)


def bars_with_intervals(axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Estimate]]) -> None:
    """:func:`bars`, each with its interval."""
    heights = {name: [estimate.value for estimate in estimates] for name, estimates in series.items()}
    intervals = {name: [(each.low, each.high) for each in estimates] for name, estimates in series.items()}
    bars(axes, groups, heights, intervals)


def panels(figure: Figure, names: Sequence[str], scores: Mapping[str, Sequence[Estimate]], title: str) -> None:
    """Fill a figure with a panel for each kind of score, since their scales differ. A panel has a bar for each system.

    Args:
        names: the names of the systems
        scores: the score of each system, by the name of the panel
        title: above all panels
    """
    for axes, (panel, estimates) in zip(figure.subplots(1, len(scores), squeeze=False)[0], scores.items()):
        bars_with_intervals(axes, [panel], {name: [estimate] for name, estimate in zip(names, estimates)})
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncol=3, frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=10)


def token_width(tokens: int) -> float:
    """The width in inches of a figure whose horizontal axis has this number of tokens."""
    return min(max(7.0, 0.42 * tokens + 1.5), 24.0)


def label_tokens(axes: Axes, tokens: Sequence[str]) -> None:
    """Write the tokens below the horizontal axis, the first token at 0."""
    axes.set_xticks(range(len(tokens)))
    axes.set_xticklabels(tokens)
    tilt_labels(axes)


def tilt_labels(axes: Axes) -> None:
    """Turn the labels of the horizontal axis by 45 degrees, so that long labels do not overlap."""
    for label in axes.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")


def colour(index: int) -> str:
    """The colour of the series at this place, from 0."""
    return COLOURS[index % len(COLOURS)]


def bar_look(index: int) -> Dict[str, Any]:
    """The colour and pattern of the bars of the series at this place, as arguments of matplotlib."""
    return {"color": colour(index), "hatch": HATCHES[index // len(COLOURS) % len(HATCHES)]}


def line_look(index: int) -> Dict[str, Any]:
    """The colour and style of the line of the series at this place, as arguments of matplotlib."""
    return {"color": colour(index), "linestyle": LINE_STYLES[index // len(COLOURS) % len(LINE_STYLES)]}


def legend_above(axes: Axes, columns: int = 3) -> None:
    """Draw the legend above the axes, where it covers no data."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=columns, frameon=False, fontsize=9)

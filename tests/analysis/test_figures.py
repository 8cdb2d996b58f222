"""What the figures of the analyses have in common."""

from __future__ import annotations

from typing import Any

from fairseq_ctxgates.analysis.figures import bars, line_look, new_figure


def test_as_many_series_as_systems_of_a_paper_look_different() -> None:
    """Eleven systems: a colour that occurs twice has another pattern, and a line another style."""
    axes: Any = new_figure(6, 4).add_subplot()
    bars(axes, ["group"], {f"system {number}": [1.0] for number in range(11)})
    assert len({(tuple(bar.get_facecolor()), bar.get_hatch()) for bar in axes.patches}) == 11
    for number in range(11):
        axes.plot([0, 1], [0, number], **line_look(number))
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 11

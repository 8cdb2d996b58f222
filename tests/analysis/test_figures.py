"""What the figures of the analyses have in common."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from fairseq_ctxgates.analysis.figures import bars, label_tokens, line_look, new_figure
from fairseq_ctxgates.analysis.report import write_figure


def test_as_many_series_as_systems_of_a_paper_look_different() -> None:
    """Eleven systems: a colour that occurs twice has another pattern, and a line another style."""
    axes: Any = new_figure(6, 4).add_subplot()
    bars(axes, ["group"], {f"system {number}": [1.0] for number in range(11)})
    assert len({(tuple(bar.get_facecolor()), bar.get_hatch()) for bar in axes.patches}) == 11
    for number in range(11):
        axes.plot([0, 1], [0, number], **line_look(number))
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 11


def draw(title: str) -> Figure:
    figure = new_figure(6, 4)
    label_tokens(figure.add_subplot(), title.split())
    figure.suptitle(title)
    return figure


def test_dollars_are_no_formulas(tmp_path: Path) -> None:
    """matplotlib would read what is between two of them as TeX, and stop at the sign of per cent."""
    write_figure(tmp_path / "both.png", lambda: draw("von $ 5 % auf $ 6 % , $$ { $ }"))
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_characters_without_a_font_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    with caplog.at_level(logging.WARNING):
        write_figure(tmp_path / "runes.png", lambda: draw("\U00012000 \U00012001 \U00012000"))  # cuneiform
    assert len(recwarn) == 0
    (message,) = [record.getMessage() for record in caplog.records if record.name.endswith("figures")]
    assert message.startswith("no installed font has 2 characters of a figure")

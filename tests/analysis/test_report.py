"""What the analyses share: tables and files, names and translations of systems, bootstrap intervals, charts."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import Estimate, bootstrap
from fairseq_ctxgates.analysis.figures import bars, new_figure
from fairseq_ctxgates.analysis.report import Result, Table, add_report_options, check_outputs, write_whole
from fairseq_ctxgates.analysis.systems import read_sentences, read_translations, system_names
from fairseq_ctxgates.errors import UserError

# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", analysis.ANALYSES)
def test_every_analysis_explains_itself_and_is_listed(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (([what, "--help"], f"usage: ctxgates analyze {what} "), (["--help"], f"  {what} ")):
        with pytest.raises(SystemExit) as stop:
            analysis.main(arguments)
        assert stop.value.code == 0
        assert expected in capsys.readouterr().out
    assert analysis.get_analysis(what).name == what


# --- tables and files -------------------------------------------------------------------------------------------------

TABLE = Table({"layer": "", "mean": ".2f", "n": ""}, [["1,3-5", 0.125, 7], ["all", None, 12]])


def test_a_table_as_text_and_as_csv() -> None:
    assert TABLE.text().splitlines() == [
        "layer      mean    n",
        "-------  ------  ---",
        "1,3-5      0.12    7",
        "all           —   12",
    ]
    assert TABLE.csv() == 'layer,mean,n\n"1,3-5",0.125,7\nall,,12\n'


def test_the_files_that_are_asked_for_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(
        json=tmp_path / "new" / "a.json", csv=tmp_path / "b.csv", figure=tmp_path / "other" / "c.png"
    )
    check_outputs(args)
    Result([TABLE], {"words": "größer"}, TABLE, lambda: new_figure(2, 1)).write(args)
    assert json.loads(args.json.read_text(encoding="utf-8")) == {"words": "größer"}
    assert args.csv.read_text(encoding="utf-8") == TABLE.csv()
    assert args.figure.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"written: {args.json}, {args.csv}, {args.figure}\n"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.json", "b.csv", "c.png", "new", "other"]


@pytest.mark.parametrize(
    "name, beginning", [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml"), ("a", b"\x89PNG")]
)
def test_a_figure_has_the_format_of_its_files_ending(name: str, beginning: bytes, tmp_path: Path) -> None:
    args = argparse.Namespace(json=None, csv=None, figure=tmp_path / name)
    check_outputs(args)
    Result([TABLE], {}, TABLE, lambda: new_figure(2, 1)).write(args)
    assert args.figure.read_bytes().startswith(beginning)


def test_a_figure_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--figure .*a.jpg: figures are written as .png, .pdf or .svg$"):
        check_outputs(argparse.Namespace(figure=tmp_path / "a.jpg"))


def test_names_of_files_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    args = argparse.Namespace(json=tmp_path / "a.json", csv=None, figure=None)
    Result([TABLE], {"system": os.fsdecode(b"\xfc.out")}, TABLE).write(args)
    assert json.loads(args.json.read_text(encoding="utf-8")) == {"system": "\udcfc.out"}


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--json .*/file/a.json: .* cannot be made"):
        check_outputs(argparse.Namespace(json=tmp_path / "file" / "a.json"))
    with pytest.raises(UserError, match="--figure .* is a folder"):
        check_outputs(argparse.Namespace(figure=tmp_path))
    if Path("/proc").exists():  # where nobody may write, also not as root
        with pytest.raises(UserError, match="--csv /proc/a.csv: /proc is not writable"):
            check_outputs(argparse.Namespace(csv=Path("/proc/a.csv")))
    (tmp_path / "link").symlink_to("file/a.json")
    with pytest.raises(UserError, match=r"--json .*/link: .*/file cannot be made"):
        check_outputs(argparse.Namespace(json=tmp_path / "link"))


def test_one_file_for_two_outputs_is_refused(tmp_path: Path) -> None:
    """By whatever name; one stream takes both."""
    (tmp_path / "link").symlink_to("new/a")
    (tmp_path / "b").touch()
    for csv, vectors in (("new/a", "link"), ("b", "new/../b")):
        args = argparse.Namespace(json=tmp_path / "c", csv=tmp_path / csv, save_vectors=tmp_path / vectors)
        with pytest.raises(UserError, match=f"--csv and --save-vectors are the same file, {args.save_vectors}: name"):
            check_outputs(args, ("json", "csv", "save_vectors"))
    check_outputs(argparse.Namespace(json=Path("/dev/null"), csv=Path("/dev/null")))


class _Shown(Analysis):
    """An analysis that shows a table."""

    name = "shown"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_report_options(parser, csv="the table", figure="nothing")

    def run(self, args: argparse.Namespace) -> Result:
        return Result(tables=[TABLE], report={"a": 1}, csv=TABLE)


def test_files_are_written_although_the_reader_of_the_table_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Ended())
    with pytest.raises(BrokenPipeError):
        _Shown().main(["--json", str(tmp_path / "a.json"), "--csv", str(tmp_path / "a.csv")])
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": 1}
    assert (tmp_path / "a.csv").exists()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="a could not be written: No space left on device"):
        write_whole(tmp_path / "a", b"new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


# --- systems ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/plain/best.pt", "runs/gated/best.pt"], ["plain", "gated"]),
        (["plain.out", "gated.txt"], ["plain", "gated"]),
        (["a/plain.out", "a/plain.txt"], ["plain.out", "plain.txt"]),
        (["runs/plain.pt"], ["plain"]),
        (["x/1/best.pt", "y/1/last.pt"], ["x/1/best", "y/1/last"]),
        (["lambda=0.5", "lambda=1.5"], ["lambda=0.5", "lambda=1.5"]),
        (["lambda=0.5.out", "lambda=1.5.out"], ["lambda=0.5", "lambda=1.5"]),
    ],
)
def test_systems_are_named_by_what_tells_their_files_apart(paths: list[str], names: list[str]) -> None:
    assert system_names(paths) == names


def test_names_that_do_not_fit_are_refused() -> None:
    assert system_names(["a", "b"], ["one", "two"]) == ["one", "two"]
    with pytest.raises(UserError, match="--names has 1 names for 2 systems"):
        system_names(["a", "b"], ["one"])
    with pytest.raises(UserError, match="two systems have the same name"):
        system_names(["a.out", "a.out"])


GENERATED = """\
2024-01-01 00:00:00 | INFO | fairseq_cli.generate | loading
S-1\tein b@@ aum
T-1\ta tree
H-1\t-0.5\ta t@@ ree
D-1\t-0.5\ta tree
P-1\t-0.1 -0.2
D-1\t-0.75\ta bush
H-0\t-1e-05\tthe\u2028end
D-0\t-1e-05\tthe\u2028end
D-2\t-inf\t
Generate test with beam=4: BLEU4 = 1.0
"""


def test_translations_of_fairseq_generate(tmp_path: Path) -> None:
    path = tmp_path / "test.out"
    path.write_text(GENERATED, encoding="utf-8")
    assert read_translations(path) == ["the\u2028end", "a tree", ""]
    path.write_text("\n".join(line for line in GENERATED.split("\n") if line[:2] != "D-"), encoding="utf-8")
    assert read_translations(path) == ["the\u2028end", "a t@@ ree"]


def test_translations_as_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "test.hyp"
    path.write_bytes(b"H-1 is a bus\r\n\nD-2\n")
    assert read_translations(path) == ["H-1 is a bus", "", "D-2"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"D-0\t-1.0\ta\nD-3\t-1.0\tb\n", "lacks the translations of 2 sentences, the first D-1"),
        (b"", "is empty"),
        (b"one\ntwo\xff\n", "line 2: not text in UTF-8"),
    ],
)
def test_a_file_of_translations_that_is_not_whole_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_translations(tmp_path / "x")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere not found: check the path"):
        read_sentences(tmp_path / "nowhere")


# --- bootstrap --------------------------------------------------------------------------------------------------------


def mean(sums: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.asarray(sums[..., 1] / sums[..., 0])


def test_the_interval_is_that_of_the_normal_distribution_where_it_applies() -> None:
    # 2,000 sentences of one token each, a third of them wrong: the standard error is sqrt(p (1 - p) / n).
    sums = np.array([[1, int(row % 3 == 0)] for row in range(2000)])
    estimate = bootstrap(sums, mean, resamples=2000, seed=7)
    p = 667 / 2000
    width = 1.96 * (p * (1 - p) / 2000) ** 0.5
    assert estimate.value == pytest.approx(p)
    assert (estimate.low, estimate.high) == (pytest.approx(p - width, abs=2e-3), pytest.approx(p + width, abs=2e-3))
    assert estimate == bootstrap(sums, mean, resamples=2000, seed=7)
    assert estimate != bootstrap(sums, mean, resamples=2000, seed=8)


def test_systems_are_resampled_together() -> None:
    # The second system makes one error more in every sentence: the difference does not vary, whatever is drawn.
    tokens = np.full(50, 10)
    errors = np.arange(50) % 7
    both = np.stack([tokens, errors, tokens, errors + 1], axis=1)
    estimate = bootstrap(both, lambda sums: mean(sums[..., 2:]) - mean(sums[..., :2]))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.1, 0.1, 0.1))
    alone = bootstrap(both[:, :2], mean)
    assert alone.low is not None and alone.high is not None and alone.low < alone.high


def test_an_undefined_figure_has_no_interval() -> None:
    estimate = bootstrap(np.zeros((3, 2)), mean)
    assert estimate == Estimate(None, None, None)
    assert (estimate.text(".1f"), estimate.as_percent()) == ("—", estimate)
    assert Estimate(0.1, 0.05, 0.2).as_percent().text(".1f") == "10.0 [5.0, 20.0]"


def test_a_figure_that_is_undefined_in_a_resample_is_shown_alone() -> None:
    """As 0/0 is, where few sentences have any of what is counted."""
    estimate = bootstrap(np.array([[1.0, 2.0], [0.0, 0.0]]), mean)
    assert estimate == Estimate(2.0, None, None)
    assert estimate.text(".1f") == "2.0"


def test_what_is_rounded_to_zero_has_no_minus() -> None:
    assert Estimate(-0.00001, -0.00006, 0.0).text(".4f") == "0.0000 [-0.0001, 0.0000]"
    assert Estimate(-0.001, -0.0, -0.01).text("+.2f") == "+0.00 [+0.00, -0.01]"
    assert Table({"share": ".1%", "number": ",d"}, [[-0.0001, -10]]).text().splitlines()[-1].split() == ["0.0%", "-10"]


# --- charts -----------------------------------------------------------------------------------------------------------


def test_bars_stand_side_by_side_and_none_for_what_is_missing() -> None:
    axes: Any = new_figure(4, 3).add_subplot()
    series: dict[str, list[float | None]] = {"one": [1.0, None], "two": [2.0, 3.0]}
    bars(axes, ["a", "b"], series, {"one": [(0.5, 1.5), (None, None)], "two": [(2.5, 2.5), (3.0, 3.5)]})
    heights = [
        [bar.get_height() for bar in container] for container in axes.containers if hasattr(container, "patches")
    ]
    np.testing.assert_array_equal(heights, [[1.0, np.nan], [2.0, 3.0]])
    edges = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert edges[0][1] == pytest.approx(edges[2][0])  # "one" and "two" of the first group touch
    assert edges[2][1] < edges[1][0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b"]

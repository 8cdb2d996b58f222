"""The result of an analysis: tables on the terminal, JSON and CSV files, figures.

Files are written atomically. Whether a file can be written is checked before the analysis runs.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Union

from tabulate import tabulate

from fairseq_ctxgates.analysis.figures import text_as_it_is
from fairseq_ctxgates.analysis.page import Page
from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.extras import needs_extra
from fairseq_ctxgates.files import atomic_write, is_replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING = "—"
FIGURES = (".png", ".pdf", ".svg")  # the formats of figures, by the ending of their file
FORMATS = f"{', '.join(FIGURES[:-1])} or {FIGURES[-1]}"
Cell = Union[str, float, None]


@dataclass(frozen=True)
class Table:
    """Rows of values under headings.

    Attributes:
        columns: for each heading (with its unit, if it has one), the format of its numbers as in :func:`format`
            (".3f"); a CSV file has the unrounded numbers
        rows: a value for each column: text, a number, or None for a missing value
    """

    columns: Mapping[str, str]
    rows: Sequence[Sequence[Cell]]

    def text(self) -> str:
        """The table as plain text: the first column is aligned to the left, all other columns to the right."""
        rows = [[_format_cell(value, spec) for value, spec in zip(row, self.columns.values())] for row in self.rows]
        alignment = ["left", *["right"] * (len(self.columns) - 1)]
        return str(tabulate(rows, headers=list(self.columns), disable_numparse=True, colalign=alignment))

    def csv(self) -> str:
        """The table as comma-separated values, the headings first; None becomes an empty field."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return stream.getvalue()


def _format_cell(value: Cell, spec: str) -> str:
    if value is None:
        return MISSING
    return value if isinstance(value, str) else format_number(value, spec)


def format_number(number: float, spec: str) -> str:
    """A number formatted by :func:`format`, without the minus of a negative number that rounds to zero."""
    text = format(number, spec)
    return format(0.0, spec) if re.fullmatch(r"-0(\.0*)?%?", text) else text


@dataclass(frozen=True)
class Result:
    """What an analysis found, in each form in which it can be shown.

    Attributes:
        tables: printed one below another
        report: the content of the JSON file
        csv: the table of the CSV file
        figure: draws the figure of ``--figure``; called only if that option is given. None if there is nothing to draw
        more_figures: the same for the options that name further figures
        more_csv: the tables for the options that name further CSV files
        page: the page of ``--html``; None if that option is not given
        headline: printed above the tables
        footer: lines printed below the tables
    """

    tables: Sequence[Table]
    report: Mapping[str, object]
    csv: Table
    figure: Optional[Callable[[], Figure]] = None
    more_figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    more_csv: Mapping[str, Table] = field(default_factory=dict)
    page: Optional[Page] = None
    headline: str = ""
    footer: Sequence[str] = ()

    def text(self) -> str:
        """Headline, tables and footer."""
        tables = "\n\n".join(table.text() for table in self.tables)
        return "\n".join([*([self.headline] if self.headline else []), tables, *self.footer])

    def write(self, args: argparse.Namespace) -> None:
        """Write the files that the analysis's :attr:`output_options` name, and print their paths."""
        written: List[Path] = []
        if args.json:
            text = json.dumps(self.report, indent=2, ensure_ascii=False, allow_nan=False)
            write_text(args.json, f"{text}\n")
            written.append(args.json)
        if args.csv:
            write_text(args.csv, self.csv.csv())
            written.append(args.csv)
        for option, table in self.more_csv.items():
            if getattr(args, option):
                write_text(getattr(args, option), table.csv())
                written.append(getattr(args, option))
        if self.page is not None:
            write_text(args.html, self.page.html())
            written.append(args.html)
        if args.figure and self.figure is not None:
            write_figure(args.figure, self.figure)
            written.append(args.figure)
        for option, draw in self.more_figures.items():
            path: Optional[Path] = getattr(args, option)
            if path:
                write_figure(path, draw)
                written.append(path)
        if written:
            print(f"written: {', '.join(map(str, written))}")


def add_report_options(parser: argparse.ArgumentParser, csv: str, figure: str) -> None:
    """Add ``--json``, ``--csv`` and ``--figure``; the arguments say what the CSV file and the figure show."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all results to this file as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help=f"also write {csv} to this file as CSV")
    parser.add_argument("--figure", type=Path, metavar="FILE", help=f"draw {figure} to this file ({FORMATS})")


def add_page_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--html``; the argument says what the page shows."""
    parser.add_argument("--html", type=Path, metavar="PAGE", help=f"write {what} to this file as a page for a browser")


def check_outputs(
    args: argparse.Namespace, options: Sequence[str] = ("json", "csv", "figure"), figures: Sequence[str] = ("figure",)
) -> None:
    """Make the folders of the files that these options name; those of ``figures`` name figures.

    Raises:
        UserError: a file could not be written there, two options name the same one, or matplotlib is missing.
    """
    named: Dict[Path, str] = {}
    for option in options:
        name = as_flag(option)
        path: Optional[Path] = getattr(args, option, None)
        if path is None:
            continue
        if option in figures:
            with needs_extra("analyze", name):
                import matplotlib  # noqa: F401
            if path.suffix not in ("", *FIGURES):
                raise UserError(f"{name} {path}: figures are written as {FORMATS}")
        # A regular file is replaced. Anything else, such as /dev/stdout, is written to; several options may name it.
        replaces = is_replaced(path)
        target = path.resolve() if replaces and path.is_symlink() else path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{name} {path}: {target.parent} cannot be made ({error.strerror})") from error
        if path.is_dir():
            raise UserError(f"{name} {path} is a folder: name a file in it")
        if replaces:
            other = named.setdefault(path.resolve(), name)
            if other != name:
                raise UserError(f"{other} and {name} are the same file, {path}: name another for one of them")
        written = target.parent if replaces else path
        try:
            if replaces:  # to root, os.access says yes to every folder
                tempfile.TemporaryFile(dir=written).close()
            elif not os.access(written, os.W_OK):
                raise PermissionError
        except OSError as error:
            raise UserError(f"{name} {path}: {written} is not writable") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        UserError: it cannot be written, for example because the disk is full.
    """
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8; errors as of :func:`write_whole`. Bytes in the names of files that are not UTF-8 become
    escapes."""
    write_whole(path, text.encode("utf-8", "backslashreplace"))


def write_figure(path: Path, draw: Callable[[], Figure]) -> None:
    """Draw a figure, and write it in the format of the file's ending; without one, as to a pipe, as PNG."""
    content = io.BytesIO()
    with text_as_it_is():
        draw().savefig(content, format=(path.suffix or FIGURES[0])[1:])
    write_whole(path, content.getvalue())

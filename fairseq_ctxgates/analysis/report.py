"""What every analysis does with its results: a table on the terminal, JSON and CSV files, a picture.

A file is written whole or not at all, and whether it can be written is known before the work begins.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence

from tabulate import tabulate

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write

MISSING = "—"


@dataclass(frozen=True)
class Table:
    """Rows of values under headings.

    columns: heading, with its unit where it has one, and how its numbers are shown, as in :func:`format` (".3f"). In a
    CSV file numbers are not rounded.
    rows: a value for each column: text, a number, or None where there is nothing to say
    """

    columns: Mapping[str, str]
    rows: Sequence[Sequence[Any]]

    def text(self) -> str:
        """As plain text: the first column on the left, the others, which are numbers, on the right."""
        rows = [[_cell(value, spec) for value, spec in zip(row, self.columns.values())] for row in self.rows]
        alignment = ["left", *["right"] * (len(self.columns) - 1)]
        return str(tabulate(rows, headers=list(self.columns), disable_numparse=True, colalign=alignment))

    def csv(self) -> str:
        """As comma-separated values, the headings first; nothing where a value is None."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return stream.getvalue()


def _cell(value: Any, spec: str) -> str:
    if value is None:
        return MISSING
    return value if isinstance(value, str) else shown(value, spec)


def shown(number: float, spec: str) -> str:
    """A number as :func:`format` shows it, but what is rounded to zero without its minus: 0.0000, never -0.0000."""
    text = format(number, spec)
    return format(0.0, spec) if re.fullmatch(r"-0(\.0*)?%?", text) else text


def add_report_options(
    parser: argparse.ArgumentParser, csv: Optional[str] = None, figure: Optional[str] = None
) -> None:
    """``--json``, and ``--csv`` and ``--figure`` where it is said what they hold."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it to this file as JSON")
    if csv:
        parser.add_argument("--csv", type=Path, metavar="FILE", help=f"also write {csv} to this file as CSV")
    if figure:
        parser.add_argument("--figure", type=Path, metavar="PNG", help=f"draw {figure} to this file")


def check_outputs(args: argparse.Namespace, options: Sequence[str] = ("json", "csv", "figure")) -> None:
    """Make the folders of the files that these options name.

    Raises:
        UserError: a file could not be written there.
    """
    for option in options:
        path: Optional[Path] = getattr(args, option, None)
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--{option} {path}: {path.parent} cannot be made ({error.strerror})") from error
        if path.is_dir():
            raise UserError(f"--{option} {path} is a folder: name a file in it")
        if not os.access(path.parent, os.W_OK):
            raise UserError(f"--{option} {path}: {path.parent} is not writable")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it when it is whole; UserError when that fails (a full disk)."""
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}") from error


def write_report(
    args: argparse.Namespace, report: Mapping[str, Any], table: Optional[Table] = None, figure: Any = None
) -> None:
    """Write the files that the options of :func:`add_report_options` name, and say which.

    Args:
        report: what the JSON file holds
        table: the CSV file's
        figure: the matplotlib figure of the picture
    """
    written: List[Path] = []
    if args.json:
        text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
        write_whole(args.json, f"{text}\n".encode())
        written.append(args.json)
    if table is not None and args.csv:
        write_whole(args.csv, table.csv().encode())
        written.append(args.csv)
    if figure is not None and args.figure:
        write_figure(args.figure, figure)
        written.append(args.figure)
    if written:
        print(f"written: {', '.join(map(str, written))}")


def write_figure(path: Path, figure: Any) -> None:
    """Write a matplotlib figure as PNG."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_whole(path, content.getvalue())

"""Options that several analyses have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Dict, Optional, Sequence


def add_data_options(parser: argparse.ArgumentParser, data: str, languages: str) -> None:
    """Add the options for the data directory and its two languages.

    Args:
        data: help text of the directory
        languages: where the languages come from by default
    """
    parser.add_argument("data", help=data)
    parser.add_argument("-s", "--source-lang", metavar="LANG", help=f"source language ({languages})")
    parser.add_argument("-t", "--target-lang", metavar="LANG", help=f"target language ({languages})")


def add_split_option(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add ``--gen-subset``, named as in ``fairseq-generate``."""
    parser.add_argument("--gen-subset", default="test", metavar="SPLIT", help=help_text)


def add_names_option(parser: argparse.ArgumentParser, systems: str, option: str) -> None:
    """Add ``--names`` of the systems; by default their names come from the files that another option names."""
    parser.add_argument(
        "--names", action="extend", nargs="+", metavar="NAME", help=f"names of the {systems} (default: from {option})"
    )


def add_file_option(
    parser: argparse._ActionsContainer,
    option: str,
    help_text: str,
    *,
    metavar: str = "FILE",
    several: bool = False,
    required: bool = False,
    default: Optional[Sequence[Path]] = None,
) -> None:
    """Add an option that names a file or, with ``several``, one or more files."""
    number: Dict[str, Any] = {"action": "extend", "nargs": "+"} if several else {}
    parser.add_argument(
        option, type=Path, required=required, default=default, metavar=metavar, help=help_text, **number
    )

"""``ctxgates completion bash|zsh|tcsh``: a script that lets a shell complete the commands and their options.

    ctxgates completion bash > ~/.local/share/bash-completion/completions/ctxgates

The script contains all commands and options, so nothing is imported while the user types.
"""

from __future__ import annotations

import argparse
import logging
from importlib import import_module
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

import ctxgates
from fairseq_ctxgates.analysis import ANALYSES, get_analysis
from fairseq_ctxgates.extras import needs_extra

SHELLS = ("bash", "zsh", "tcsh")


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description="Print a script that completes the commands of ctxgates and their options. For bash, write it to "
        "~/.local/share/bash-completion/completions/ctxgates; for zsh, to _ctxgates in a folder of $fpath."
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    """Run ``ctxgates completion``.

    Raises:
        UserError: shtab, or a package that a command needs, is not installed
    """
    shell = get_parser().parse_args(argv).shell
    with needs_extra("completion", "ctxgates completion"):
        import shtab
    logging.getLogger("shtab").setLevel(logging.WARNING)  # fairseq sets the root logger to INFO or DEBUG
    print(shtab.complete(all_commands(shtab.FILE, shtab.DIRECTORY), shell))


def all_commands(files: object, folders: object) -> argparse.ArgumentParser:
    """One parser for all commands, each a sub-parser.

    Args:
        files: shtab's marker for options that take the name of a file
        folders: shtab's marker for options that take the name of a folder
    """
    parser = argparse.ArgumentParser(prog="ctxgates")
    parser.add_argument("--version", action="store_true", help="show the version")
    commands = parser.add_subparsers()
    for name, (module, about) in ctxgates.COMMANDS.items():
        if name == "user-dir":
            commands.add_parser(name, help=about)
        elif name == "analyze":
            analyses = commands.add_parser(name, help=about).add_subparsers()
            for what, (_, shown) in ANALYSES.items():
                analyses.add_parser(what, help=shown, parents=[get_analysis(what).get_parser()], add_help=False)
        else:
            commands.add_parser(name, help=about, parents=[import_module(module).get_parser()], add_help=False)
    for _, command in walk(parser):
        for action in command._actions:
            if action.dest == "data":
                action.complete = folders  # type: ignore[attr-defined]
            elif action.type is Path:
                action.complete = files  # type: ignore[attr-defined]
    return parser


def walk(parser: argparse.ArgumentParser, name: str = "") -> Iterator[Tuple[str, argparse.ArgumentParser]]:
    """A parser and all its sub-parsers, each with its name on the command line."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield from walk(command, f"{name} {word}".strip())

"""The command ``ctxgates``: prints the plugin's path, and runs the plugin's own commands.

This module is outside the package because importing :mod:`fairseq_ctxgates` imports fairseq, which takes seconds:
``--user-dir "$(ctxgates user-dir)"`` should not take this time twice.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import runpy
import sys
from importlib import import_module
from typing import Dict, List, Optional, Tuple

# Name of the command: (module whose main() runs it, help text)
COMMANDS: Dict[str, Tuple[str, str]] = {
    "user-dir": ("ctxgates", "print the path to give to fairseq's --user-dir"),
    "gate-labels": ("fairseq_ctxgates.commands.gate_labels", "add gate labels to a binarized data directory"),
    "preceding-sentences": (
        "fairseq_ctxgates.commands.preceding_sentences",
        "add the preceding sentence of each sentence to a data directory",
    ),
    "relations": ("fairseq_ctxgates.commands.relations", "add the relations of source words to a data directory"),
    "analyze": (
        "fairseq_ctxgates.analysis",
        "the papers' analyses of trained models: errors, gates, BLEU by bucket, attention, ...",
    ),
    "average-checkpoints": (
        "fairseq_ctxgates.commands.average_checkpoints",
        "average the parameters of several checkpoints",
    ),
    "describe": ("fairseq_ctxgates.commands.describe", "show what was added to a data directory, and whether it fits"),
    "export": ("fairseq_ctxgates.commands.export", "turn a model without mechanisms into one of stock fairseq"),
    "completion": ("fairseq_ctxgates.commands.completion", "print a script that completes these commands in a shell"),
}


def user_dir() -> str:
    """The absolute path of the package ``fairseq_ctxgates``, which is always in the folder of this file."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "fairseq_ctxgates")


def version() -> str:
    """The version of this package, ``fairseq_ctxgates.__version__``."""
    found: str = runpy.run_path(os.path.join(user_dir(), "version.py"))["__version__"]
    return found


def get_parser() -> argparse.ArgumentParser:
    """The options of ``ctxgates`` itself; each command has its own."""
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="ctxgates",
        usage="ctxgates COMMAND [options]",
        description=f"commands:\n{listing}",
        epilog="ctxgates COMMAND --help says more about a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version()}")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of the commands above")
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    """Run the command that the first argument names, with the remaining arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        get_parser().print_help(sys.stderr)
    command = get_parser().parse_args(arguments[:1]).command
    if command == "user-dir":
        argparse.ArgumentParser(f"ctxgates {command}", description=COMMANDS[command][1]).parse_args(arguments[1:])
        print(user_dir())
        return
    # On import, this module logs that tensorboardX is missing; none of these commands needs it.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    try:
        from fairseq_ctxgates.errors import exit_on_user_error
    except ImportError as error:  # no fairseq, or one that this package cannot use: fairseq_ctxgates/compat.py
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)

    # Characters that the terminal's encoding lacks must not make a command fail after its work is done.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.argv[0] = f"ctxgates {command}"  # the program name in the command's help
    with exit_on_user_error():
        import_module(COMMANDS[command][0]).main(arguments[1:])


if __name__ == "__main__":
    main()

"""The command ``ctxgates``: where the plugin is, and what it offers beside fairseq's own commands.

It is a module of its own, outside the package, because importing :mod:`fairseq_ctxgates` registers everything with
fairseq and so takes seconds: ``--user-dir "$(ctxgates user-dir)"`` should not wait for that twice.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import Dict, List, Optional, Tuple

# Name of the command: (module whose main() runs it, what it does)
COMMANDS: Dict[str, Tuple[str, str]] = {
    "user-dir": ("ctxgates", "print the path to give to fairseq's --user-dir"),
    "gate-labels": ("fairseq_ctxgates.commands.gate_labels", "add gate labels to a binarized data directory"),
    "preceding-sentences": (
        "fairseq_ctxgates.commands.preceding_sentences",
        "add the preceding sentence of each to a data directory in document order",
    ),
    "relations": ("fairseq_ctxgates.commands.relations", "add the relations of source words to a data directory"),
    "analyze": ("fairseq_ctxgates.analysis", "gate statistics and figures of a trained model"),
    "average-checkpoints": (
        "fairseq_ctxgates.commands.average_checkpoints",
        "average the parameters of several checkpoints",
    ),
}


def user_dir() -> str:
    """The absolute path of the package ``fairseq_ctxgates``, which stands beside this file in every installation."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "fairseq_ctxgates")


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
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of the commands above")
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    """Run the command that the first argument names with the rest of the arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    command = get_parser().parse_args(arguments[:1]).command
    if command == "user-dir":
        if arguments[1:]:
            get_parser().error("user-dir takes no options")
        print(user_dir())
        return
    from fairseq_ctxgates.errors import exit_on_user_error

    sys.argv[0] = f"ctxgates {command}"  # the name under which the command's help speaks of itself
    with exit_on_user_error():
        import_module(COMMANDS[command][0]).main(arguments[1:])


if __name__ == "__main__":
    main()

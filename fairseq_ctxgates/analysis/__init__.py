"""The papers' analyses as commands: ``ctxgates analyze WHAT data-bin/X --path checkpoint.pt``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Dict, List, Optional, Tuple

# Name of the analysis: (module whose main() runs it, what it shows)
ANALYSES: Dict[str, Tuple[str, str]] = {
    "gates": ("fairseq_ctxgates.analysis.gates", "mean, variance and label agreement of context gates; a heat map"),
}


def get_parser() -> argparse.ArgumentParser:
    """The options of ``ctxgates analyze`` itself; each analysis has its own."""
    width = max(map(len, ANALYSES))
    parser = argparse.ArgumentParser(
        prog="ctxgates analyze",
        usage="ctxgates analyze WHAT [options]",
        description="analyses:\n" + "\n".join(f"  {name:{width}}  {about}" for name, (_, about) in ANALYSES.items()),
        epilog="ctxgates analyze WHAT --help says more about an analysis.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", metavar="WHAT", choices=ANALYSES, help="one of the analyses above")
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    """Run the analysis that the first argument names with the rest of the arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    what = get_parser().parse_args(arguments[:1]).what
    import_module(ANALYSES[what][0]).main(arguments[1:])

"""The papers' analyses as commands: ``ctxgates analyze WHAT data-bin/X --path checkpoint.pt``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import Dict, List, Optional, Tuple

# Name of the analysis: (module whose main() runs it, what it shows)
ANALYSES: Dict[str, Tuple[str, str]] = {
    "forced-decoding": (
        "fairseq_ctxgates.analysis.forced_decoding",
        "error rate of forced decoding, and how many errors are of context selection",
    ),
    "bleu-by-length": ("fairseq_ctxgates.analysis.bleu_by_length", "BLEU by the length of the source sentence"),
    "bleu-by-unknowns": ("fairseq_ctxgates.analysis.bleu_by_unknowns", "BLEU by the number of unknown source words"),
    "compare": ("fairseq_ctxgates.analysis.compare", "BLEU, chrF and paired bootstrap of several systems"),
    "attention-entropy": (
        "fairseq_ctxgates.analysis.attention_entropy",
        "entropy of the attention over the preceding sentence for each target word",
    ),
    "coherence": ("fairseq_ctxgates.analysis.coherence", "mean cosine similarity of adjacent sentences"),
    "contrastive": (
        "fairseq_ctxgates.analysis.contrastive",
        "accuracy of scoring the right translation above wrong ones",
    ),
    "cxmi": ("fairseq_ctxgates.analysis.cxmi", "how many bits the preceding sentence saves for each target word"),
    "sweep": ("fairseq_ctxgates.analysis.sweep", "BLEU by the setting of one option, a model trained for each"),
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

"""The papers' analyses as commands: ``ctxgates analyze WHAT data-bin/X --path checkpoint.pt``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from fairseq_ctxgates.extras import needs_extra

if TYPE_CHECKING:
    from fairseq_ctxgates.analysis.analysis import Analysis

# Name of the analysis: (module of this package and class, what the analysis shows). Importing a module takes seconds.
ANALYSES: Dict[str, Tuple[str, str]] = {
    "forced-decoding": (
        "forced_decoding:ForcedDecodingAnalysis",
        "error rate of forced decoding, and the share of context selection errors",
    ),
    "bleu-by-length": ("bleu_by_length:BLEUByLengthAnalysis", "BLEU by the length of the source sentence"),
    "bleu-by-unknowns": ("bleu_by_unknowns:BLEUByUnknownsAnalysis", "BLEU by the number of unknown source words"),
    "compare": ("compare:ComparisonAnalysis", "BLEU, chrF and paired bootstrap of several systems"),
    "attention-entropy": (
        "attention_entropy:AttentionEntropyAnalysis",
        "entropy of the attention over the preceding sentence for each target word",
    ),
    "coherence": ("coherence:CoherenceAnalysis", "mean cosine similarity of adjacent sentences"),
    "contrastive": (
        "contrastive:ContrastiveAnalysis",
        "accuracy of scoring the right translation above wrong ones",
    ),
    "cxmi": ("cxmi:CXMIAnalysis", "how many bits the preceding sentence saves for each target word"),
    "sweep": ("sweep:SweepAnalysis", "BLEU by the setting of one option, with a model trained for each setting"),
    "relations": (
        "relations:RelationAnalysis",
        "the relation mask of a sentence beside the encoder's attention; a heat map",
    ),
    "gates": ("gates:GateAnalysis", "mean, variance and label agreement of context gates; a heat map"),
}


def get_analysis(name: str) -> Analysis:
    """The analysis of this name; its module is imported here."""
    module, _, class_name = ANALYSES[name][0].partition(":")
    with needs_extra("analyze", f"ctxgates analyze {name}"):
        analysis: Analysis = getattr(import_module(f"{__name__}.{module}"), class_name)()
    return analysis


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
    """Run the analysis that the first argument names, with the remaining arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        get_parser().print_help(sys.stderr)
    what = get_parser().parse_args(arguments[:1]).what
    get_analysis(what).main(arguments[1:])

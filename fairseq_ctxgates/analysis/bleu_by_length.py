"""BLEU by the length of the source sentence (Li et al. 2020, Figure 2; Li, Zhu et al. 2022, Figure 5).

``ctxgates analyze bleu-by-length data-bin/X --ref test.en --sys plain.out gated.out --figure length.png``
"""

from __future__ import annotations

from typing import List, Optional, Sequence

from fairseq.data import Dictionary

from fairseq_ctxgates.analysis import buckets
from fairseq_ctxgates.analysis.systems import join_subwords


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run ``ctxgates analyze bleu-by-length``."""
    parser = buckets.get_parser(
        "ctxgates analyze bleu-by-length",
        "BLEU of one or more systems, and the differences to the first, by the length of the source sentence in words.",
        buckets="10,20,30,40,50",
    )
    args = parser.parse_args(argv)

    def lengths(source: Sequence[str], dictionary: Dictionary) -> List[int]:
        return [len(line.split()) for line in join_subwords(source, args.remove_bpe)]

    buckets.run(args, "source words", lengths)

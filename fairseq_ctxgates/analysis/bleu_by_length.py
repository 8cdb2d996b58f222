"""BLEU by the length of the source sentence (Li et al. 2020, Figure 2; Li, Zhu et al. 2022, Figure 5).

``ctxgates analyze bleu-by-length data-bin/X --ref test.en --sys plain.out gated.out --figure length.png``
"""

from __future__ import annotations

import argparse
from typing import List, Sequence

from fairseq.data import Dictionary

from fairseq_ctxgates.analysis.buckets import BucketAnalysis
from fairseq_ctxgates.data.subwords import join_subwords


class BLEUByLengthAnalysis(BucketAnalysis):
    """BLEU of one or more systems, and the differences to the first, by the length of the source sentence in words."""

    name = "bleu-by-length"
    unit = "source words"
    default_bounds = "10,20,30,40,50"

    def count(self, source: Sequence[str], dictionary: Dictionary, args: argparse.Namespace) -> List[int]:
        """The number of words of each sentence."""
        return [len(line.split()) for line in join_subwords(source, args.remove_bpe)]

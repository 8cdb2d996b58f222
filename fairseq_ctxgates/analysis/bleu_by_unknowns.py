"""BLEU by the number of unknown words in the source sentence (a figure of Chen et al. 2017).

``ctxgates analyze bleu-by-unknowns data-bin/X --ref test.en --sys plain.out smoothed.out --figure unknowns.png``
"""

from __future__ import annotations

import argparse
from typing import List, Sequence

from fairseq.data import Dictionary

from fairseq_ctxgates.analysis.buckets import BucketAnalysis


def unknown_words(source: Sequence[str], dictionary: Dictionary) -> List[int]:
    """How many tokens of each sentence are not in the dictionary."""
    unknown = dictionary.unk()
    return [sum(dictionary.index(token) == unknown for token in line.split()) for line in source]


class BLEUByUnknownsAnalysis(BucketAnalysis):
    """BLEU of one or more systems, and the differences to the first, by the number of unknown words in the source
    sentence: words that are not in the data directory's dictionary, each counted as often as it occurs.
    """

    name = "bleu-by-unknowns"
    unit = "unknown source words"
    default_bounds = "0,1,2,3,4,5,6,7,8,9"  # the 11 columns of the slides

    def count(self, source: Sequence[str], dictionary: Dictionary, args: argparse.Namespace) -> List[int]:
        """The number of unknown tokens of each sentence."""
        return unknown_words(source, dictionary)

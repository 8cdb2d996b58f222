"""BLEU by the number of unknown words in the source sentence (Chen et al. 2017, the table of OOV numbers).

``ctxgates analyze bleu-by-unknowns data-bin/X --ref test.en --sys plain.out smoothed.out --figure unknowns.png``
"""

from __future__ import annotations

from typing import List, Optional, Sequence

from fairseq.data import Dictionary

from fairseq_ctxgates.analysis import buckets


def unknown_words(source: Sequence[str], dictionary: Dictionary) -> List[int]:
    """How many tokens of each sentence are not in the dictionary."""
    unknown = dictionary.unk()
    return [sum(dictionary.index(token) == unknown for token in line.split()) for line in source]


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run ``ctxgates analyze bleu-by-unknowns``."""
    parser = buckets.get_parser(
        "ctxgates analyze bleu-by-unknowns",
        "BLEU of one or more systems, and the differences to the first, by the number of words of the source sentence "
        "that are not in the data directory's dictionary, each counted as often as it stands there.",
        buckets="0,1,2,3,4,5,6,7",
    )
    buckets.run(parser.parse_args(argv), "unknown source words", unknown_words)

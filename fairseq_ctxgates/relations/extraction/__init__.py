"""Relation tuples of source sentences: what extracts them, and which words and tokens they stand at.

``build_extractor`` makes an extractor, ``relations_of_tokens`` asks it for the tuples of rows of tokens.
"""

from fairseq_ctxgates.relations.extraction.extractor import (
    RelationExtractor,
    RelationTuple,
    build_extractor,
    relations_of_tokens,
)
from fairseq_ctxgates.relations.extraction.words import REMOVE_BPE, Words, words_of_tokens

__all__ = [
    "REMOVE_BPE",
    "RelationExtractor",
    "RelationTuple",
    "Words",
    "build_extractor",
    "relations_of_tokens",
    "words_of_tokens",
]

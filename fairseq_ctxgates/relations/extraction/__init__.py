"""Extraction of relation tuples (subject, relation, object) from source sentences, for factual relation augmentation.

``build_extractor`` makes an extractor; ``relations_of_tokens`` extracts the tuples of rows of tokens.
"""

from fairseq_ctxgates.relations.extraction.build import EXTRACTORS, build_extractor
from fairseq_ctxgates.relations.extraction.extractor import (
    NotParsed,
    RelationExtractor,
    RelationTuple,
    relations_of_tokens,
)
from fairseq_ctxgates.relations.extraction.words import Words, words_of_tokens

__all__ = [
    "EXTRACTORS",
    "NotParsed",
    "RelationExtractor",
    "RelationTuple",
    "Words",
    "build_extractor",
    "relations_of_tokens",
    "words_of_tokens",
]

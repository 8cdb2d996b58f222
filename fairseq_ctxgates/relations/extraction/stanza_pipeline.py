"""Relation tuples from a Stanza pipeline, which runs in this process."""

from __future__ import annotations

import threading
from typing import List, Sequence, Tuple

import stanza

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.dependencies import tuples_of_tree
from fairseq_ctxgates.relations.extraction.extractor import NotParsed, RelationExtractor, RelationTuple


class StanzaExtractor(RelationExtractor):
    """Tuples from the dependency trees of ``stanza.Pipeline``, which downloads its models where they are not there.

    Args:
        language: Stanza's code of the language

    Raises:
        UserError: there are no models of the language, and they cannot be downloaded
    """

    sentences_at_once = 200

    def __init__(self, language: str) -> None:
        try:
            self._pipeline = stanza.Pipeline(
                language, processors="tokenize,pos,lemma,depparse", tokenize_pretokenized=True, verbose=False
            )
        except Exception as error:  # stanza raises what it meets: network, files, its own
            raise UserError(
                f"Stanza has no models for {language!r} here ({type(error).__name__}: {error}); get them by "
                f"python -c 'import stanza; stanza.download(\"{language}\")'"
            ) from error
        self._lock = threading.Lock()

    def parse(self, sentences: Sequence[Sequence[str]]) -> List[Tuple[List[str], List[RelationTuple]]]:
        """The words of each sentence and the tuples of its dependency tree; see :meth:`RelationExtractor.parse`.

        Raises:
            NotParsed: the pipeline failed on them
        """
        try:
            with self._lock:
                document = self._pipeline([list(words) for words in sentences])
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:  # of a sentence it cannot take
            raise NotParsed(str(error)) from error
        return [
            (
                [word.text for word in sentence.words],
                tuples_of_tree([word.head - 1 for word in sentence.words], [word.deprel for word in sentence.words]),
            )
            for sentence in document.sentences
        ]

"""Relation tuples from the dependency trees of a Stanza pipeline, which runs in this process."""

from __future__ import annotations

import threading
from typing import List, Sequence, Tuple

import stanza

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.dependencies import tuples_of_tree
from fairseq_ctxgates.relations.extraction.extractor import NotParsed, RelationExtractor, RelationTuple


class StanzaExtractor(RelationExtractor):
    """Tuples from the dependency trees of ``stanza.Pipeline``, which downloads missing models.

    Args:
        language: Stanza's code of the language

    Raises:
        UserError: the models of the language are missing and cannot be downloaded
    """

    sentences_at_once = 200

    def __init__(self, language: str) -> None:
        try:
            self._pipeline = stanza.Pipeline(
                language,
                processors="tokenize,pos,lemma,depparse",
                tokenize_pretokenized=True,
                download_method=stanza.DownloadMethod.REUSE_RESOURCES,  # else models that are there need a network, too
                verbose=False,
            )
        except Exception as error:  # stanza raises errors of the network, of files, and its own
            raise UserError(
                f"Stanza has no models for {language!r} here ({type(error).__name__}: {error}); download them with "
                f"python -c 'import stanza; stanza.download(\"{language}\")'"
            ) from error
        self._lock = threading.Lock()

    def parse(self, sentences: Sequence[Sequence[str]]) -> List[Tuple[List[str], List[RelationTuple]]]:
        """Parse sentences and extract the tuples of their dependency trees; see :meth:`RelationExtractor.parse`.

        Raises:
            NotParsed: the pipeline failed
        """
        try:
            with self._lock:
                document = self._pipeline([list(words) for words in sentences])
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:  # errors that a sentence can cause
            raise NotParsed(str(error)) from error
        return [
            (
                [word.text for word in sentence.words],
                tuples_of_tree([word.head - 1 for word in sentence.words], [word.deprel for word in sentence.words]),
            )
            for sentence in document.sentences
        ]

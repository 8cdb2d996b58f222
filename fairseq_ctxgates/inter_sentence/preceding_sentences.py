"""The stream of preceding source sentences that the inter-sentence gate reads ("before-x" in Kuang and Xiong 2018)."""

from typing import AbstractSet, List, Optional, Sequence

import numpy as np
import torch
from fairseq.data import LanguagePairDataset, data_utils
from torch import Tensor

from fairseq_ctxgates.data.side_stream import Batch, TaskOptions
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE
from fairseq_ctxgates.inter_sentence.preceding_stream import PrecedingSentencesConfig, PrecedingStream

NULL_LENGTH = 3  # of the NULL sentence, which precedes a document's first sentence
GROUPS = 4  # of sentences of similar length in a batch: more mean less padding, but more calls of the encoder


class PrecedingSentences(PrecedingStream):
    """Adds ``net_input["preceding_tokens"]``, (batch, preceding length): the tokens of the preceding source sentence,
    end of sentence included, and (eos, eos, eos) for a sentence without one; padded on the same side as the source. A
    sentence longer than ``--max-source-positions`` is cut at its beginning, or with ``--truncate-source`` at its end.

    For models that read N > 1 preceding sentences a row has up to N of them, the nearest last, and there are also
    ``preceding_distances``, of the same shape: 1 for the tokens of the nearest sentence, 2 for the one before it, and
    so on, 0 at padding; ``preceding_groups``, see :func:`group_sentences`; and ``preceding_batch_size``, the number of
    rows.
    """

    inputs = ("preceding_tokens", "preceding_distances", "preceding_groups", "preceding_batch_size")

    def __init__(
        self,
        rows: np.ndarray,
        dataset: LanguagePairDataset,
        options: PrecedingSentencesConfig,
        task_options: TaskOptions,
        sentences: Optional[Sequence[Tensor]] = None,
    ) -> None:
        super().__init__(rows, dataset, options, task_options, sentences)
        self.null = torch.full((NULL_LENGTH,), dataset.src_dict.eos())
        self.preceding_lengths = np.where(self.contexts[:, 0] == NONE, NULL_LENGTH, self.context_lengths.sum(axis=1))

    @classmethod
    def is_wanted(cls, options: PrecedingSentencesConfig, required: AbstractSet[str]) -> bool:
        return options.load_preceding_sentences or cls.name in required

    @classmethod
    def check_models(
        cls, options: PrecedingSentencesConfig, task_options: TaskOptions, required: AbstractSet[str]
    ) -> None:
        """Raise UserError if ``--load-preceding-sentences`` is given to models without a gate for them, or as for
        :class:`PrecedingStream`."""
        super().check_models(options, task_options, required)
        if options.load_preceding_sentences and cls.name not in required:
            if options.concatenate_preceding is not None:
                raise UserError(
                    "--load-preceding-sentences is for a gate; --concatenate-preceding loads the preceding sentences "
                    "itself: leave --load-preceding-sentences out"
                )
            raise UserError(
                "--load-preceding-sentences needs an architecture that reads them: --arch isg_transformer, or "
                "--inter-sentence-gate; for a plain one see --concatenate-preceding"
            )

    def num_tokens(self, indices: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The source and its preceding sentences all go through the encoder, so their lengths are added; the target's
        length counts if it is greater. The source counts as padded to the longest, so that a batch with all its padding
        stays below ``--max-tokens``."""
        return np.maximum(tokens, self.source_lengths[indices].max() + self.preceding_lengths[indices])

    def padded_lengths(self, indices: np.ndarray) -> Optional[np.ndarray]:
        return self.preceding_lengths[indices]

    def add_to_batch(self, batch: Batch) -> None:
        """Add ``preceding_tokens``, (batch, preceding length), and the other inputs that the class docstring lists."""
        sentences = [self.preceding_of(row) for row in batch["id"].numpy()]
        tokens = self._collate(list(map(torch.cat, sentences)), self.dataset.src_dict.pad())
        batch["net_input"]["preceding_tokens"] = tokens
        if self.rows.shape[1] > 1:
            distances = self._collate([distances_of(row) for row in sentences], 0)
            batch["net_input"]["preceding_distances"] = distances
            batch["net_input"]["preceding_groups"] = group_sentences(distances)
            batch["net_input"]["preceding_batch_size"] = len(distances)

    def preceding_of(self, row: int) -> List[Tensor]:
        """The sentences before a sentence, the nearest last, or NULL; each (length,)."""
        return self.sources_before(row) or [self.null]

    def _collate(self, rows: Sequence[Tensor], padding: int) -> Tensor:
        multiple = self.dataset.pad_to_multiple
        return data_utils.collate_tokens(rows, padding, left_pad=self.dataset.left_pad_source, pad_to_multiple=multiple)


def distances_of(sentences: Sequence[Tensor]) -> Tensor:
    """For each token of the sentences, the distance of its sentence: 1 for the last sentence, which is the nearest, 2
    for the one before it, and so on; (tokens,)."""
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    return torch.arange(len(sentences), 0, -1).repeat_interleave(lengths)


def group_sentences(distances: Tensor) -> List[Tensor]:
    """Group the sentences in a batch's rows by similar length, because each sentence is encoded by itself.

    Args:
        distances: (batch, length), 0 at padding; a sentence is a run of tokens of the same distance

    Returns:
        for each group, the places of its sentences' tokens in the flattened batch, (sentences, their length); a shorter
        sentence is padded with batch · length, which is one more than the last place
    """
    rows = torch.arange(len(distances))[:, None] * (distances.max() + 1)  # so that no sentence goes on in the next row
    _, lengths = torch.unique_consecutive(rows + distances, return_counts=True)
    starts = lengths.cumsum(0) - lengths
    is_sentence = distances.flatten()[starts] > 0  # and not padding
    lengths, order = lengths[is_sentence].sort()
    starts = starts[is_sentence][order]
    groups = []
    for members in torch.arange(len(order)).tensor_split(min(GROUPS, len(order))):
        steps = torch.arange(int(lengths[members].max()))
        places = starts[members, None] + steps
        groups.append(places.masked_fill(steps >= lengths[members, None], distances.numel()))
    return groups

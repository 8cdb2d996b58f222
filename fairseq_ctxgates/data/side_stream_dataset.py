"""The dataset that joins side streams to the one fairseq built."""

import math
from typing import List, Optional, Sequence

import numpy as np
from fairseq.data import BaseWrapperDataset, FairseqDataset, LanguagePairDataset, data_utils
from torch.utils.data import Dataset

from fairseq_ctxgates.data.side_stream import Batch, SideStream


class SideStreamDataset(BaseWrapperDataset):
    """A ``LanguagePairDataset`` whose batches also carry the tensors of the given streams.

    ``BaseWrapperDataset`` leaves batching to the inner dataset, which knows nothing of the streams. Here the wrapper
    makes the batches itself, so that what a stream adds counts towards ``--max-tokens``.

    Args:
        training_mask: which sentences are in batches, a boolean for each; None: all

    Attributes:
        is_translated: whether the sentences are translated, so that one may have to come after another
    """

    is_translated = False

    def __init__(
        self, dataset: LanguagePairDataset, streams: Sequence[SideStream], training_mask: Optional[np.ndarray] = None
    ) -> None:
        super().__init__(dataset)
        self.streams = tuple(streams)
        self.training_mask = training_mask

    def collater(self, samples: List[Batch], **kwargs: object) -> Batch:
        batch: Batch = self.dataset.collater(samples, **kwargs)
        if batch:
            for stream in self.streams:
                stream.add_to_batch(batch)
        return batch

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        for stream in self.streams:
            stream.set_epoch(epoch)

    def ordered_indices(self) -> np.ndarray:
        indices = self.dataset.ordered_indices()
        return indices if self.training_mask is None else indices[self.training_mask[indices]]

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        tokens = self.dataset.num_tokens_vec(indices)
        for stream in self.streams:
            tokens = stream.num_tokens(indices, tokens)
        return tokens

    def num_tokens(self, index: int) -> int:
        return int(self.num_tokens_vec(np.array([index]))[0])

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        required_batch_size_multiple: int = 1,
    ) -> Sequence[np.ndarray]:
        """As fairseq's, but round by round if a stream asks for that.

        If a stream is padded to a tensor of its own, the sentences of a batch have similar lengths in both the source
        and the stream. A sentence that exceeds ``max_tokens`` only because of the stream is a batch of its own.
        """
        rounds = (self.rounds(indices) if self.is_translated else None) or [indices]
        size = max_tokens, max_sentences, required_batch_size_multiple
        return [batch for members in rounds for batch in self._batches_of(members, *size)]

    def rounds(self, indices: np.ndarray) -> Optional[List[np.ndarray]]:
        """The sentences in the groups in which a stream wants them translated; None if any order will do."""
        return next((found for found in (stream.rounds(indices) for stream in self.streams) if found is not None), None)

    def _batches_of(
        self,
        indices: np.ndarray,
        max_tokens: Optional[int],
        max_sentences: Optional[int],
        required_batch_size_multiple: int,
    ) -> Sequence[np.ndarray]:
        lengths = [
            padded for padded in (stream.padded_lengths(indices) for stream in self.streams) if padded is not None
        ]
        if not lengths:
            return FairseqDataset.batch_by_size(self, indices, max_tokens, max_sentences, required_batch_size_multiple)
        if not len(indices):  # every sentence was too long
            return []
        tokens, stream_lengths = self.dataset.num_tokens_vec(indices), np.maximum.reduce(lengths)
        batches: List[np.ndarray] = []
        made: List[np.ndarray] = []
        rest = np.empty(0, dtype=np.int64)  # the end of a band, which goes on in the next one
        for number, band in enumerate(_bands(tokens, stream_lengths, max_tokens, max_sentences)):
            places = np.concatenate([rest, band])
            # From short to long and from long to short in turns, so that the rest has the lengths of what follows it.
            places = places[np.argsort(stream_lengths[places] * (-1) ** number, kind="stable")]
            with_streams = self.num_tokens_vec(indices[places])
            if max_tokens is not None:
                with_streams = np.minimum(with_streams, np.maximum(tokens[places], max_tokens))
            made = data_utils.batch_by_size(
                indices[places],
                num_tokens_fn=self.num_tokens,
                num_tokens_vec=with_streams.astype(np.int64),
                max_tokens=max_tokens,
                max_sentences=max_sentences,
                required_batch_size_multiple=required_batch_size_multiple,
            )
            # fairseq ends with two batches that may not be full: a multiple, and what remains.
            batches += made[:-2]
            rest = places[sum(map(len, made[:-2])) :]
        batches += made[-2:]
        # fairseq's main branch drops what remains (fairseq's issue 5036).
        left_out = indices[rest][sum(map(len, made[-2:])) :]
        return [*batches, left_out] if len(left_out) else batches

    # `fairseq-generate --replace-unk` reads the raw text through these.
    @property
    def src(self) -> Dataset:
        return self.dataset.src

    @property
    def tgt(self) -> Optional[Dataset]:
        return self.dataset.tgt


def _bands(
    tokens: np.ndarray, lengths: np.ndarray, max_tokens: Optional[int], max_sentences: Optional[int]
) -> List[np.ndarray]:
    """Cut the sentences, which fairseq has ordered by source length, into √n bands with equally many tokens, where n is
    the number of batches. If each band is ordered by the stream's lengths, a batch covers 1/√n of the range of either
    length.

    Args:
        tokens: the number of tokens of each sentence in its longer language, without the stream
        lengths: the length of each sentence's row in the stream

    Returns:
        the places of the sentences of each band that has any: a sentence may have more tokens than a band should have
    """
    total = np.cumsum(tokens + lengths)
    batches = max(total[-1] / (max_tokens or math.inf), len(tokens) / (max_sentences or math.inf), 1)
    bands = math.ceil(math.sqrt(batches))
    ends = np.searchsorted(total, total[-1] * np.arange(1, bands) / bands)
    return [band for band in np.split(np.arange(len(tokens)), ends) if len(band)]

"""The dataset that joins side streams to the one fairseq built."""

from typing import Any, Dict, List, Sequence

import numpy as np
from fairseq.data import BaseWrapperDataset, FairseqDataset, LanguagePairDataset

from fairseq_ctxgates.data.side_stream import SideStream


class SideStreamDataset(BaseWrapperDataset):
    """A ``LanguagePairDataset`` whose batches also carry the tensors of the given streams.

    ``BaseWrapperDataset`` leaves batching to the inner dataset, which knows nothing of the streams; here it is the
    wrapper's own, so that what a stream adds counts towards ``--max-tokens``.
    """

    def __init__(self, dataset: LanguagePairDataset, streams: Sequence[SideStream]) -> None:
        super().__init__(dataset)
        self.streams = tuple(streams)

    def collater(self, samples: List[Dict[str, Any]], **kwargs: Any) -> Dict[str, Any]:
        batch: Dict[str, Any] = self.dataset.collater(samples, **kwargs)
        if batch:
            for stream in self.streams:
                stream.add_to_batch(batch, self.dataset)
        return batch

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        tokens = self.dataset.num_tokens_vec(indices)
        for stream in self.streams:
            tokens = stream.num_tokens(indices, tokens)
        return tokens

    def num_tokens(self, index: int) -> int:
        return int(self.num_tokens_vec(np.array([index]))[0])

    batch_by_size = FairseqDataset.batch_by_size

    # `fairseq-generate --replace-unk` reads the raw text through these.
    @property
    def src(self) -> Any:
        return self.dataset.src

    @property
    def tgt(self) -> Any:
        return self.dataset.tgt

"""The processes that load batches (``--num-workers``)."""

from __future__ import annotations

from typing import Any, List


class LoaderWorkers:
    """Ends the workers of iterators over a dataset whose epoch is over, or that a new iterator replaced before its end
    (``--max-valid-steps``).

    fairseq keeps the workers for the iterator's next epoch. If each epoch has an iterator of its own, they would stay
    until the garbage collector finds them. That may be in any process that is forked later, and takes up to five
    seconds for each worker, because the worker's queue may be gone before the worker.
    """

    def __init__(self) -> None:
        self._iterators: List[Any] = []

    def watch(self, iterator: Any) -> None:
        """Add fairseq's ``EpochBatchIterator``."""
        if iterator.num_workers > 0:
            self._iterators.append(iterator)

    def end_before(self, dataset: Any) -> None:
        """End the workers of all iterators whose last batch was read, and of all iterators over this dataset, for which
        a new iterator is to be made. An iterator that is used again starts new workers."""
        ended = [
            iterator
            for iterator in self._iterators
            if iterator.dataset is dataset or iterator.next_epoch_idx > iterator.epoch
        ]
        self._iterators = [iterator for iterator in self._iterators if iterator not in ended]
        for loader in (iterator.dataloader for iterator in ended if iterator.dataloader is not None):
            workers, loader._iterator = loader._iterator, None
            if workers is not None:
                workers._shutdown_workers()

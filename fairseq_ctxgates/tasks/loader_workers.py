"""The processes that load batches (``--num-workers``)."""

from __future__ import annotations

from typing import Any, List


class LoaderWorkers:
    """Ends the workers of iterators over a dataset whose epoch is over.

    fairseq keeps them for the iterator's next epoch. Where each epoch has an iterator of its own they would stay until
    the garbage collector finds them, which may be in any later process that was forked, and waits for each worker up
    to five seconds, as its queue may be gone before it.
    """

    def __init__(self) -> None:
        self._iterators: List[Any] = []

    def watch(self, iterator: Any) -> None:
        """Add fairseq's ``EpochBatchIterator``."""
        if iterator.num_workers > 0:
            self._iterators.append(iterator)

    def end_finished(self) -> None:
        """End the workers of all whose last batch was read. An iterator that is used again starts new ones."""
        finished = [iterator for iterator in self._iterators if iterator.next_epoch_idx > iterator.epoch]
        self._iterators = [iterator for iterator in self._iterators if iterator not in finished]
        for loader in (iterator.dataloader for iterator in finished):
            workers, loader._iterator = loader._iterator, None
            if workers is not None:
                workers._shutdown_workers()

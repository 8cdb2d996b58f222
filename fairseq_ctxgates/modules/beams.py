"""Which sentences a decoder's rows belong to when a beam search reorders them: what is kept of a sentence between
decoding steps is kept once for all of its beams."""

from typing import Optional

import torch
from torch import Tensor


def sentences_of_beams(order: Tensor, sentences: int, rows: int) -> Optional[Tensor]:
    """The sentences that are left when rows are reordered as fairseq's beam search does, and its attention takes for
    granted: first each sentence gets k beams, which are neighbours; then beams change places within their sentence, and
    finished sentences are left out. What is returned for any other order is not defined.

    The host waits for the device only where the number of rows grows, once a batch.

    Args:
        order: the number of the row that each of the new rows was, (new rows,)
        sentences: how many sentences there were
        rows: how many rows there were, k for each sentence

    Returns:
        the number of the sentence of each new group of rows, or None where the sentences are those there were
    """
    if len(order) == rows:  # beams have changed places
        return None
    beams = rows // sentences
    if beams > 1:  # sentences are finished
        return torch.div(order.view(-1, beams)[:, 0], beams, rounding_mode="floor")
    if len(order) > rows and len(order) % rows == 0:  # the first beams
        each = torch.arange(rows, device=order.device).repeat_interleave(len(order) // rows)
        return None if torch.equal(order, each) else order
    return order

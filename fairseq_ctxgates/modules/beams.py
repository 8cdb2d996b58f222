"""Which sentences a decoder's rows belong to when beam search reorders them. This is needed because what is kept of a
sentence between decoding steps is kept once for all of its beams."""

from typing import Optional

import torch
from torch import Tensor


def sentences_of_beams(order: Tensor, sentences: int, rows: int) -> Optional[Tensor]:
    """The sentences that are left when rows are reordered.

    The order must be one that fairseq's beam search makes and its attention takes for granted: first each sentence
    gets k beams, which are neighbours; later, beams change places within their sentence, and finished sentences are
    left out. The result for any other order is undefined.

    The host waits for the device only where the number of rows grows, once a batch.

    Args:
        order: for each new row, the number of the old row that it copies, (new rows,)
        sentences: the number of sentences before
        rows: the number of rows before, k for each sentence

    Returns:
        for each new group of rows, the number of its sentence; None if the sentences stay the same
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

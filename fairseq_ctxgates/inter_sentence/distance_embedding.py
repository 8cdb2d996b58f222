"""Which of several preceding sentences a state belongs to."""

from typing import Optional

from torch import Tensor, nn

from fairseq_ctxgates.parts import EncodingPart


class DistanceEmbedding(EncodingPart):
    """Adds a learned vector for the distance of its sentence to each state, h_j + e_{d(j)}: d is 1 for the preceding
    sentence, 2 for the one before it, and so on. Kuang and Xiong 2018 read one sentence and need no such vector. The
    vectors start as zero, so that a new model ignores the distance.

    Args:
        context_size: how many preceding sentences a model reads
        width: of a state
    """

    def __init__(self, context_size: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1 + context_size, width, padding_idx=0)  # 0: what attention does not see
        nn.init.zeros_(self.embedding.weight)

    def forward(self, states: Tensor, distances: Optional[Tensor]) -> Tensor:
        """See :meth:`EncodingPart.forward`."""
        added: Tensor = self.embedding.weight[1] if distances is None else self.embedding(distances)
        return states + added

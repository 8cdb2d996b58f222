"""The scores that a model gives to reference translations."""

from __future__ import annotations

from typing import List

import numpy as np
import torch

from fairseq_ctxgates.analysis.inference import Inference, run_without_attention
from fairseq_ctxgates.data.side_stream import Batch


@torch.no_grad()
def token_log_probs(inference: Inference, batch: Batch) -> List[np.ndarray]:
    """The natural log-probability log P(y_i | y_<i, x) of each target token, end of sentence included, as fairseq's
    ``SequenceScorer`` computes it.

    Returns:
        for each sentence of the batch, in its order, (target length,) float64
    """
    output = run_without_attention(inference.model, batch)
    log_probs = inference.model.get_normalized_probs(output, log_probs=True, sample=batch)
    target = batch["target"]
    scores = log_probs.gather(dim=-1, index=target.unsqueeze(-1)).squeeze(-1).cpu().double().numpy()
    is_token = target.ne(inference.task.target_dictionary.pad()).cpu().numpy()
    return [row[chosen] for row, chosen in zip(scores, is_token)]

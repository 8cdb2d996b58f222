"""What a model gives to reference translations: the log-probability of each of their tokens."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import torch

from fairseq_ctxgates.analysis.inference import Inference


@torch.no_grad()
def token_log_probs(inference: Inference, batch: Dict[str, Any]) -> List[np.ndarray]:
    """log P(y_i | y_<i, x), natural, of each target token of a batch, end of sentence included: as fairseq's
    ``SequenceScorer``.

    Returns:
        (its target length,) float64 for each sentence, in the order of the batch
    """
    # One of ours computes attention the faster way where its weights are not needed.
    options = {"return_attention": False} if hasattr(inference.model, "required_streams") else {}
    output = inference.model(**batch["net_input"], **options)
    log_probs = inference.model.get_normalized_probs(output, log_probs=True, sample=batch)
    target = batch["target"]
    of_target = log_probs.gather(dim=-1, index=target.unsqueeze(-1)).squeeze(-1).cpu().double().numpy()
    is_token = target.ne(inference.task.target_dictionary.pad()).cpu().numpy()
    return [row[chosen] for row, chosen in zip(of_target, is_token)]

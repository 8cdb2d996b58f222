"""Context-aware smoothing of embeddings (Chen et al. 2017)."""

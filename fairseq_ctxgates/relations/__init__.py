"""Factual relations (Li, Zhu et al. 2022): extraction, stream, mask and fusion."""

"""Factual relations (Li et al. 2022): extraction, stream, mask and fusion."""

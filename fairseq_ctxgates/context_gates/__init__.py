"""Context gates (Li et al. 2020), their regularizer and its labels."""

"""Context gates (RCG; Li et al. 2020, and Tu et al. 2017), their labels and their regularizer."""

"""Regularized context gates (RCG; Li et al. 2020), and those of Tu et al. 2017: gates, labels and regularizer."""

"""Commands that add a side stream to a binarized data directory; installed as ``fairseq_ctxgates.preprocess``."""

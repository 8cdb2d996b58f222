"""The commands of ``ctxgates``."""

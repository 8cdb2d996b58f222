"""Loading checkpoints without trusting them: see docs/reliability.md."""

"""Loading checkpoints without trusting them, and saving them: see docs/reliability.md."""

"""``ctxgates gate-labels`` as a script: ``python preprocess/gate_labels.py data-bin/X``."""

from fairseq_ctxgates.commands.gate_labels import main
from fairseq_ctxgates.errors import exit_on_user_error

if __name__ == "__main__":
    with exit_on_user_error():
        main()

"""``ctxgates relations`` as a script: ``python preprocess/relations.py data-bin/X``."""

from fairseq_ctxgates.commands.relations import main
from fairseq_ctxgates.errors import exit_on_user_error

if __name__ == "__main__":
    with exit_on_user_error():
        main()

"""``ctxgates preceding-sentences`` as a script: ``python preprocess/preceding_sentences.py data-bin/X``."""

from fairseq_ctxgates.commands.preceding_sentences import main
from fairseq_ctxgates.errors import exit_on_user_error

if __name__ == "__main__":
    with exit_on_user_error():
        main()

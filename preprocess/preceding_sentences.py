"""``ctxgates preceding-sentences`` as a script: ``python preprocess/preceding_sentences.py data-bin/X``."""

import sys

from ctxgates import main

if __name__ == "__main__":
    main(["preceding-sentences", *sys.argv[1:]])

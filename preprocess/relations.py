"""``ctxgates relations`` as a script: ``python preprocess/relations.py data-bin/X``."""

import sys

from ctxgates import main

if __name__ == "__main__":
    main(["relations", *sys.argv[1:]])

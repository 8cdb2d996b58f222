"""``ctxgates gate-labels`` as a script: ``python preprocess/gate_labels.py data-bin/X``."""

import sys

from ctxgates import main

if __name__ == "__main__":
    main(["gate-labels", *sys.argv[1:]])

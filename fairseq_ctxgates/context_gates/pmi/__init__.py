"""Pointwise mutual information (PMI) of words, and the gate labels it gives (Li et al. 2020, equations 6 and 7).

* :mod:`.counting` counts the bilingual and the monolingual table on the training data;
* :mod:`.table` is such a table: stored, looked up, equation 6;
* :mod:`.labelling` compares the two tables for every target word: equation 7;
* :mod:`.sentences` is the text as all three read it, :mod:`.kernels` are their inner loops.

Everything goes by blocks of target types: a block needs the counts of its own types only, so one dense row at a time
holds them whatever the size of the corpus, and blocks can be handed to as many processes as there are.
"""

from fairseq_ctxgates.context_gates.pmi.counting import DEFAULT_MEMORY, count_tables, load_tables
from fairseq_ctxgates.context_gates.pmi.kernels import EOS
from fairseq_ctxgates.context_gates.pmi.labelling import GateLabeller, label_split, load_labeller
from fairseq_ctxgates.context_gates.pmi.sentences import Sentences, check_split, map_split
from fairseq_ctxgates.context_gates.pmi.table import COUNTS, MEASURES, STRATEGIES, PMIOptions, PMITable, table_path

__all__ = [
    "COUNTS",
    "DEFAULT_MEMORY",
    "EOS",
    "MEASURES",
    "STRATEGIES",
    "GateLabeller",
    "PMIOptions",
    "PMITable",
    "Sentences",
    "check_split",
    "count_tables",
    "label_split",
    "load_labeller",
    "load_tables",
    "map_split",
    "table_path",
]

"""The counts of word pairs that a PMI table is computed from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class PMICounts(NamedTuple):
    """C of equation 6: compressed sparse rows, with the marginals of the table. The arrays are memory-mapped.

    A row belongs to a target word μ = y, which is to be labelled. A column belongs to a word ν of its context: a source
    word x in the bilingual table, a preceding target word y' in the monolingual table.

    row_counts (target types), column_counts (context types): C(μ) and C(ν)
    row_start (target types + 1): where each row begins in ``columns`` and ``pair_counts``
    columns (pairs): the context types of each row, in the order in which they were first found with the target word
    pair_counts (pairs): C(μ, ν)
    total (1): Z
    """

    row_counts: np.ndarray
    column_counts: np.ndarray
    row_start: np.ndarray
    columns: np.ndarray
    pair_counts: np.ndarray
    total: np.ndarray

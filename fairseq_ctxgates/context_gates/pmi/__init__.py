"""Pointwise mutual information (PMI) of words, and the gate labels it gives (Li et al. 2020, equations 6 and 7).

* :mod:`.counting` counts word pairs for the bilingual and the monolingual table on the training data;
* :mod:`.table` stores a table and computes PMI from its counts, equation 6;
* :mod:`.labelling` compares the two tables for each target word, equation 7;
* :mod:`.sentences` reads the text, :mod:`.sparse_counts` holds the counts, :mod:`.kernels` has the inner loops.

Counting and labelling divide the target types into blocks. A block needs the counts of its own types only, so that one
dense row at a time is enough for a corpus of any size, and several processes can work on different blocks.
"""

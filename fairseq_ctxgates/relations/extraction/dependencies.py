"""Relation tuples from a Universal Dependencies tree: a predicate with its core arguments."""

from __future__ import annotations

from typing import AbstractSet, Dict, List, Sequence

from fairseq_ctxgates.relations.extraction.extractor import RelationTuple

# https://universaldependencies.org/u/dep; subtypes (nsubj:pass) count as what they are subtypes of
SUBJECTS = frozenset({"nsubj", "csubj"})
OBJECTS = frozenset({"obj", "iobj", "dobj", "ccomp", "xcomp", "obl:arg", "obl:agent"})
RELATION_WORDS = frozenset({"aux", "cop", "expl", "compound:prt"})
PHRASE_WORDS = frozenset({"det", "amod", "nummod", "compound", "flat", "fixed", "goeswith", "nmod:poss", "case"})
SHARES_SUBJECT = frozenset({"conj", "xcomp"})  # with its head


class Tree:
    """The dependency tree of a sentence.

    Args:
        heads: for each word the position of its head, from 0; -1 for the root
        labels: for each word its relation to the head
    """

    def __init__(self, heads: Sequence[int], labels: Sequence[str]) -> None:
        self.heads, self.labels = heads, labels
        self._dependents: Dict[int, List[int]] = {}
        for word, head in enumerate(heads):
            self._dependents.setdefault(head, []).append(word)

    def is_a(self, word: int, wanted: AbstractSet[str]) -> bool:
        """Whether a word's relation to its head is one of these, or a subtype of one."""
        return self.labels[word] in wanted or self.labels[word].partition(":")[0] in wanted

    def dependents(self, head: int, wanted: AbstractSet[str]) -> List[int]:
        """The words with such a relation to a word."""
        return [word for word in self._dependents.get(head, []) if self.is_a(word, wanted)]

    def phrases(self, heads: Sequence[int]) -> List[int]:
        """The words of the phrases of these heads, in order: noun phrases without clauses, appositions and further
        coordinated ones."""
        words = set(heads)
        for head in heads:
            words.update(self.phrases(self.dependents(head, PHRASE_WORDS)))
        return sorted(words)

    def subjects(self, predicate: int) -> List[int]:
        """The heads of a predicate's subjects: its own, or those of the predicate that it is coordinated with or a
        complement of."""
        own = self.dependents(predicate, SUBJECTS)
        if own or not self.is_a(predicate, SHARES_SUBJECT):
            return own
        return self.subjects(self.heads[predicate])

    def is_predicate(self, word: int) -> bool:
        """Whether a word has arguments, is what a copula says of its subject, or coordinated with such a word."""
        return self.is_a(word, {"conj"}) or bool(self.dependents(word, SUBJECTS | OBJECTS | {"cop"}))


def tuples_of_tree(heads: Sequence[int], labels: Sequence[str]) -> List[RelationTuple]:
    """A tuple for each predicate that has a subject: the subject, the predicate with its auxiliaries and particles, and
    all its objects (of a clause the predicate). In "she is a good friend" the relation is the copula, and the object
    what it says of the subject.

    Args:
        heads, labels: see :class:`Tree`
    """
    tree, tuples = Tree(heads, labels), []
    for predicate in filter(tree.is_predicate, range(len(heads))):
        subjects = tree.phrases(tree.subjects(predicate))
        relation = tree.dependents(predicate, RELATION_WORDS)
        objects = tree.phrases(tree.dependents(predicate, OBJECTS))
        if tree.dependents(predicate, {"cop"}):
            objects = sorted({*objects, *tree.phrases([predicate])})
        else:
            relation = sorted([predicate, *relation])
        if subjects:
            tuples.append(RelationTuple(subjects, relation, objects))
    return tuples

"""Relation tuples from a Universal Dependencies tree: a predicate with its core arguments."""

from __future__ import annotations

from typing import AbstractSet, Dict, List, Sequence

from fairseq_ctxgates.relations.extraction.extractor import RelationTuple

# https://universaldependencies.org/u/dep; a label without subtype includes its subtypes (nsubj includes nsubj:pass)
SUBJECTS = frozenset({"nsubj", "csubj"})
OBJECTS = frozenset({"obj", "iobj", "dobj", "ccomp", "xcomp", "obl:arg", "obl:agent"})
RELATION_WORDS = frozenset({"aux", "cop", "expl", "compound:prt"})
PHRASE_WORDS = frozenset({"det", "amod", "nummod", "compound", "flat", "fixed", "goeswith", "nmod:poss", "case"})
SHARES_SUBJECT = frozenset({"conj", "xcomp"})  # a predicate with this label shares the subject of its head


class DependencyTree:
    """The dependency tree of a sentence.

    Args:
        heads: for each word the position of its head, from 0; -1 for the root
        labels: for each word the label of its relation to the head
    """

    def __init__(self, heads: Sequence[int], labels: Sequence[str]) -> None:
        self.heads, self.labels = heads, labels
        self._dependents: Dict[int, List[int]] = {}
        for word, head in enumerate(heads):
            self._dependents.setdefault(head, []).append(word)

    def has_label(self, word: int, labels: AbstractSet[str]) -> bool:
        """Whether a word's relation to its head has one of these labels, or a subtype."""
        return self.labels[word] in labels or self.labels[word].partition(":")[0] in labels

    def dependents(self, head: int, labels: AbstractSet[str]) -> List[int]:
        """The dependents of a word with one of these labels, or a subtype."""
        return [word for word in self._dependents.get(head, []) if self.has_label(word, labels)]

    def phrases(self, heads: Sequence[int]) -> List[int]:
        """The words of the phrases of these heads, in ascending order.

        Noun phrases do not include clauses, appositions and coordinated phrases.
        """
        words, heads = set(heads), list(heads)
        while heads:
            found = self.dependents(heads.pop(), PHRASE_WORDS)
            heads += [word for word in found if word not in words]
            words.update(found)
        return sorted(words)

    def subjects(self, predicate: int) -> List[int]:
        """The heads of a predicate's subjects.

        A predicate without subjects shares those of its head if it is coordinated with its head, or a complement.
        """
        for _ in self.heads:  # at most once for each word, because what a parser returns may not be a tree
            own, head = self.dependents(predicate, SUBJECTS), self.heads[predicate]
            if own or head < 0 or not self.has_label(predicate, SHARES_SUBJECT):
                return own
            predicate = head
        return []

    def is_predicate(self, word: int) -> bool:
        """Whether a word has arguments or a copula, or is coordinated."""
        return self.has_label(word, {"conj"}) or bool(self.dependents(word, SUBJECTS | OBJECTS | {"cop"}))


def tuples_of_tree(heads: Sequence[int], labels: Sequence[str]) -> List[RelationTuple]:
    """One tuple for each predicate with a subject.

    A tuple has the subject, the relation (the predicate with its auxiliaries and particles), and all objects; of an
    object clause it has the predicate only. In "she is a good friend" the relation is the copula "is", and the object
    is "a good friend".

    Args:
        heads, labels: see :class:`DependencyTree`
    """
    tree, tuples = DependencyTree(heads, labels), []
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

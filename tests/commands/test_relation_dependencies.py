"""Tuples from dependency trees, worked by hand; and from the documents of a Stanza pipeline."""

from __future__ import annotations

from typing import List

import pytest

pytest.importorskip("stanza")
from stanza import DownloadMethod
from stanza.models.common.doc import Document

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.dependencies import DependencyTree, tuples_of_tree
from fairseq_ctxgates.relations.extraction.stanza_pipeline import StanzaExtractor
from tests.helpers.extractors import make_extractor

# Word, head (counted from 1, 0 for the root), relation
TREES = {
    "a transitive verb with a particle, and a verb that is coordinated with it": (
        "Der/2/det Mann/3/nsubj fängt/0/root den/5/det Ball/3/obj auf/3/compound:prt und/8/cc lacht/3/conj ./3/punct",
        ["Der Mann | fängt auf | den Ball", "Der Mann | lacht | "],
    ),
    "two objects, a relative clause": (
        "Die/2/det Frau/9/nsubj ,/7/punct die/7/nsubj einen/6/det Hut/7/obj trägt/2/acl:relcl ,/9/punct gibt/0/root "
        "ihrem/11/det:poss Bruder/9/iobj ein/13/det Buch/9/obj",
        ["die | trägt | einen Hut", "Die Frau | gibt | ihrem Bruder ein Buch"],
    ),
    "passive": (
        "Das/2/det Haus/6/nsubj:pass wurde/6/aux:pass vom/5/case Vater/6/obl:agent gebaut/0/root",
        ["Das Haus | wurde gebaut | vom Vater"],
    ),
    "names, numbers and fixed expressions are whole": (
        "Anna/4/nsubj:pass Maria/1/flat was/4/aux:pass chosen/0/root by/9/case means/5/fixed of/5/fixed two/9/nummod "
        "votes/4/obl:agent",
        ["Anna Maria | was chosen | by means of two votes"],
    ),
    "an expletive": ("There/2/expl come/0/root three/4/nummod dogs/2/nsubj", ["three dogs | There come | "]),
    "copula": (
        "Peter/5/nsubj ist/5/cop ein/5/det guter/5/amod Lehrer/0/root in/7/case Rom/5/nmod",
        ["Peter | ist | ein guter Lehrer"],
    ),
    "a complement shares the subject; the object's own parts": (
        "She/2/nsubj wants/0/root to/4/mark buy/2/xcomp her/6/nmod:poss brother/9/nmod:poss 's/6/case red/9/amod "
        "house/4/obj",
        ["She | wants | buy", "She | buy | her brother 's red house"],
    ),
    "a clause as the object": (
        "He/2/nsubj says/0/root that/5/mark dogs/5/nsubj bark/2/ccomp loudly/5/advmod",
        ["He | says | bark", "dogs | bark | "],
    ),
    "coordinated subjects: the first": ("Dogs/4/nsubj and/3/cc cats/1/conj sleep/0/root", ["Dogs | sleep | "]),
    "no subject": ("Open/0/root the/3/det door/1/obj", []),
    "no verb": ("a/3/det red/3/amod hat/0/root", []),
    "one word": ("Hello/0/root", []),
    "no word": ("", []),
}


@pytest.mark.parametrize("tree, expected", TREES.values(), ids=TREES)
def test_tuples_of_trees(tree: str, expected: List[str]) -> None:
    entries = [entry.split("/") for entry in tree.split()]
    words, heads, labels = ([entry[part] for entry in entries] for part in range(3))
    tuples = tuples_of_tree([int(head) - 1 for head in heads], labels)
    assert [" | ".join(" ".join(words[word] for word in part) for part in found) for found in tuples] == expected
    assert all(list(part) == sorted(set(part)) for found in tuples for part in found)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["conj", "xcomp", "compound"])
def test_a_tree_as_deep_as_a_sentence_is_long(label: str) -> None:
    """The subject of the first word is shared down the chain; the words of a compound are one phrase."""
    heads, labels = [1, -1, *range(1, 1999)], ["nsubj", "root", *[label] * 1998]
    tuples = tuples_of_tree(heads, labels)
    assert {tuple(found.subject) for found in tuples} <= {(0,)}
    assert len(tuples_of_tree([-1, 0, *range(1, 1999)], ["root", "obj", *["compound"] * 1998])) == 0


def test_what_is_no_tree() -> None:
    assert tuples_of_tree([-1], ["conj"]) == []
    assert tuples_of_tree([1, 0], ["conj", "conj"]) == []
    assert DependencyTree([1, 0], ["compound", "compound"]).phrases([0]) == [0, 1]


class Pipeline:
    """In place of stanza.Pipeline, whose models would have to be downloaded: subject, verb, object."""

    def __init__(self, lang: str, **options: object) -> None:
        assert options["tokenize_pretokenized"] is True
        assert options["download_method"] is DownloadMethod.REUSE_RESOURCES  # no network for models that are there
        if lang == "xx":
            raise FileNotFoundError("resources.json")
        self.requests: List[List[List[str]]] = []

    def __call__(self, sentences: List[List[str]]) -> Document:
        self.requests.append(sentences)
        if any("BAD" in words for words in sentences):
            raise RuntimeError("out of memory")
        heads, labels = [2, 0, 2], ["nsubj", "root", "obj"]
        return Document(
            [
                [
                    {"id": place + 1, "text": word.replace("ae", "ä"), "head": heads[place], "deprel": labels[place]}
                    for place, word in enumerate(words)
                ]
                for words in sentences
            ]
        )


def test_a_stanza_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stanza.Pipeline", Pipeline)
    with make_extractor("stanza", "de") as extractor:
        found = extractor.extract([["Hunde", "jagen", "Katzen"], [], ["Kaese", "mag", "Maria"], ["Hunde", "BAD"]])
    assert found == [[[0, 1, 2]], [], None, None]  # the third came back as other words, the fourth failed
    assert isinstance(extractor, StanzaExtractor)
    assert [len(request) for request in extractor._pipeline.requests] == [3, 1, 1, 1]


def test_a_language_that_stanza_has_no_models_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stanza.Pipeline", Pipeline)
    with pytest.raises(UserError, match=r"no models for 'xx'.*resources.json.*stanza.download\(\"xx\"\)"):
        make_extractor("stanza", "xx")

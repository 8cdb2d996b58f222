"""Coherence of documents, with word vectors whose cosines can be worked out, in every format that is read."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np
import pytest
from gensim.models import KeyedVectors

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis.coherence import coherence, coherence_figure
from fairseq_ctxgates.analysis.word_vectors import TrainingText, is_binary, read_vectors, save_vectors
from fairseq_ctxgates.errors import UserError
from tests.helpers.outputs import output_files

VECTORS = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0], "no": [0.0, 0.0]}


def keyed_vectors() -> Any:
    vectors = KeyedVectors(2)
    vectors.add_vectors(list(VECTORS), np.array(list(VECTORS.values()), dtype=np.float32))
    return vectors


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "cosine"),
    [
        ("a", "b", 0.0),
        ("a", "a", 1.0),
        ("a", "c", math.sqrt(0.5)),
        ("a a b", "c", 3 / math.sqrt(10)),  # means (2/3, 1/3) and (1, 1)
        ("a x x b", "c c", 1.0),  # x has no vector
        ("x", "a", None),
        ("", "a", None),
        ("no", "a", None),  # a vector without a direction
    ],
)
def test_two_sentences_by_hand(first: str, second: str, cosine: Any) -> None:
    found = coherence([first.split(), second.split()], np.array([-1, 0]), keyed_vectors())
    assert found.mean.value == (None if cosine is None else pytest.approx(cosine, abs=1e-7))
    assert found.pairs == (0 if cosine is None else 1)


def test_a_word_that_is_no_text_does_not_spoil_the_vectors(tmp_path: Path) -> None:
    (tmp_path / "vectors").write_bytes(b"2 2\n\xff 1 0\nb 0 1\n")
    assert "b" in read_vectors(tmp_path / "vectors")


@pytest.mark.parametrize("name", ["vectors.bin", "vectors.txt"])
def test_vectors_are_saved_as_their_name_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(b"2 2\na 1 0\nb 0 1\n")
    save_vectors(read_vectors(tmp_path / "given"), tmp_path / name)
    assert is_binary(tmp_path / name) == name.endswith(".bin")
    assert "b" in read_vectors(tmp_path / name)


def test_the_mean_is_over_the_pairs_of_a_document() -> None:
    sentences = [text.split() for text in ("a", "a", "b", "x", "b", "c")]
    before = np.array([-1, 0, -1, 2, 3, 4])  # a a | b x b c
    found = coherence(sentences, before, keyed_vectors())
    np.testing.assert_allclose(found.similarities, [1, np.nan, np.nan, math.sqrt(0.5)], atol=1e-7)
    assert (found.pairs, found.mean.value) == (2, pytest.approx((1 + math.sqrt(0.5)) / 2))
    assert (found.mean.low, found.mean.high) == (pytest.approx(math.sqrt(0.5)), pytest.approx(1))
    assert found.known_words == pytest.approx(5 / 6)


def test_figure_has_a_bar_for_each_text() -> None:
    texts = {"plain": ["a", "c"], "gated": ["a", "a"], "nothing known": ["x", "x"], "reference": ["a", "b"]}
    found = {
        name: coherence([[word] for word in words], np.array([-1, 0]), keyed_vectors()) for name, words in texts.items()
    }
    figure: Any = coherence_figure(found)
    figure.canvas.draw()
    (axes,) = figure.axes
    heights = {bars.get_label(): bars[0].get_height() for bars in axes.containers if hasattr(bars, "patches")}
    assert heights == {"plain": pytest.approx(math.sqrt(0.5)), "gated": pytest.approx(1), "reference": pytest.approx(0)}
    assert "cosine" in axes.get_ylabel()
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"plain", "gated", "reference"}


# --- word vectors -----------------------------------------------------------------------------------------------------


def write_vectors(folder: Path, form: str) -> Path:
    path = folder / f"vectors.{form}"
    plain = path.with_suffix("") if form.endswith(".gz") else path
    keyed_vectors().save_word2vec_format(str(plain), binary="bin" in form)
    if form.endswith(".gz"):
        path.write_bytes(gzip.compress(plain.read_bytes()))
    return path


@pytest.mark.parametrize("form", ["txt", "bin", "txt.gz", "bin.gz"])
def test_vectors_are_read_in_each_format(tmp_path: Path, form: str) -> None:
    vectors: Any = read_vectors(write_vectors(tmp_path, form))
    assert {word: vectors[word].tolist() for word in VECTORS} == VECTORS


# --- command ----------------------------------------------------------------------------------------------------------

REFERENCE = ["a", "b", "a c", "c@@ c", "B"]
SYSTEM = ["a", "a", "a", "a", "b"]


@pytest.fixture
def texts(tmp_path: Path) -> Dict[str, Path]:
    """The files of two documents, of three sentences and two; the system's as fairseq-generate prints it."""
    return {
        "ref": write(tmp_path / "ref.txt", REFERENCE),
        "sys": write(tmp_path / "sys.out", [f"H-{number}\t-0.5\t{SYSTEM[number]}" for number in (3, 0, 1, 4, 2)]),
        "documents": write(tmp_path / "docids", ["x", "x", "x", "y", "y"]),
        "blank": write(tmp_path / "blank", ["s", "s", "s", "", "s", "s"]),
        "blanks": write(tmp_path / "blanks", ["", "s", "s", "s", "", "", "s", "s", ""]),
        "vectors": write_vectors(tmp_path, "txt"),
    }


def run(texts: Dict[str, Path], *options: Any, vectors: Sequence[Any] = ()) -> None:
    vectors = vectors or ("--vectors", texts["vectors"])
    arguments = ["coherence", "--ref", texts["ref"], "--sys", texts["sys"], *vectors, *options]
    analysis.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("separated", ["documents", "blank", "blanks"])
def test_every_output_has_the_coherence_worked_by_hand(
    texts: Dict[str, Path], tmp_path: Path, separated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "--documents" if separated == "documents" else "--blank-line-separated"
    files = output_files(tmp_path / "new", "coherence")
    run(texts, option, texts[separated], *(f"--{name}={path}" for name, path in files.items()))
    report = json.loads(files["json"].read_text(encoding="utf-8"))
    assert report["documents"] == 2
    # a, b: 0; b, (a + c) / 2 = (1, 1/2): 1 / √5. "cc" and "B" have no vector: the pair is not counted.
    assert report["texts"]["reference"]["coherence"] == pytest.approx(math.sqrt(0.2) / 2)
    assert (report["texts"]["reference"]["pairs"], report["texts"]["sys"]["pairs"]) == (2, 3)
    assert report["texts"]["sys"]["coherence"] == pytest.approx(2 / 3)  # the last pair: a, b
    assert report["texts"]["reference"]["known_words"] == pytest.approx(4 / 6)
    rows = list(csv.DictReader(files["csv"].read_text(encoding="utf-8").splitlines()))
    assert [(row["after"], row["sentence"]) for row in rows] == [("1", "2"), ("2", "3"), ("4", "5")]
    assert [row["similarity in sys"] for row in rows] == ["1.0", "1.0", "0.0"]
    assert rows[-1]["similarity in reference"] == ""
    assert files["figure"].read_bytes().startswith(b"\x89PNG")
    assert "documents: 2; word vectors: 4" in capsys.readouterr().out


def test_blank_lines_among_the_sentences_are_no_documents(texts: Dict[str, Path], tmp_path: Path) -> None:
    reference = write(tmp_path / "blank-too", ["a", "b", "", "", "a", "c", ""])
    options = ["--blank-line-separated", reference, "--vectors", texts["vectors"], "--json", tmp_path / "x.json"]
    analysis.main(["coherence", "--ref", *map(str, [reference, *options])])
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["documents"] == 2


def test_vectors_of_no_word_of_the_texts(texts: Dict[str, Path], tmp_path: Path) -> None:
    vectors = tmp_path / "others.txt"
    vectors.write_text("2 2\nzz 0.1 0.2\nyy 0.2 0.3\n")
    with pytest.raises(UserError, match="no two adjacent sentences have words with a vector"):
        analysis.main(["coherence", "--ref", str(texts["ref"]), "--one-document", "--vectors", str(vectors)])


def test_lower_case_and_one_document(texts: Dict[str, Path], tmp_path: Path) -> None:
    run(texts, "--one-document", "--lowercase", "--remove-bpe", "none", "--json", tmp_path / "x.json")
    report = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    # c@@ has no vector now, c has: 0, 1 / √5, cos((1, 1/2), (1, 1)) = 3 / √10, cos(c, b) = 1 / √2.
    expected = [0, math.sqrt(0.2), 3 / math.sqrt(10), math.sqrt(0.5)]
    assert report["texts"]["reference"]["coherence"] == pytest.approx(sum(expected) / 4)


def test_sub_words_are_joined_before_they_are_lower_cased(tmp_path: Path, texts: Dict[str, Path]) -> None:
    texts = {**texts, "sys": write(tmp_path / "marked", ["A_EOW b_EOW"] * 5)}
    run(texts, "--one-document", "--lowercase", "--remove-bpe", "_EOW", "--json", tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["texts"]["marked"]["known_words"] == 1


def test_training_is_reproducible(texts: Dict[str, Path], tmp_path: Path) -> None:
    lines = ["a b c", "b c a a", "c c a b b"] * 20
    corpus = [write(tmp_path / "corpus.txt", lines), tmp_path / "corpus.gz"]
    corpus[1].write_bytes(gzip.compress(b"d d d\n" * 5))
    saved = []
    for number, seed in enumerate((1, 1, 2)):
        path = tmp_path / f"vectors{number}.bin"
        options = ("--save-vectors", path, "--dim", 8, "--min-count", 5, "--seed", seed)
        run(texts, "--one-document", vectors=("--train-vectors", *corpus, *options))
        saved.append(path.read_bytes())
    assert saved[0] == saved[1] != saved[2]
    vectors: Any = read_vectors(tmp_path / "vectors0.bin")
    assert (set(vectors.index_to_key), vectors.vector_size) == ({"a", "b", "c", "d"}, 8)
    assert not list(tmp_path.glob(".*"))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_without_gensim(texts: Dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim", None)
    with pytest.raises(UserError, match=r"coherence needs gensim .*pip install 'fairseq-ctxgates\[coherence\]'"):
        run(texts, "--one-document")


def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(codecs.BOM_UTF8 + b"the cat\nthe dog\n")
    assert list(TrainingText([tmp_path / "text"], str.split)) == [["the", "cat"], ["the", "dog"]]

"""The page for a browser: what it holds, and what a real browser makes of it."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis.attention_entropy import read_attention
from fairseq_ctxgates.analysis.cxmi_page import Document, chosen_document
from fairseq_ctxgates.analysis.cxmi_scores import SentenceScores
from fairseq_ctxgates.analysis.gate_statistics import LABEL_NAMES
from fairseq_ctxgates.analysis.gates import read_gates
from fairseq_ctxgates.analysis.inference import Inference
from fairseq_ctxgates.analysis.page import Page, PageSentence
from fairseq_ctxgates.analysis.preceding_context import has_inter_sentence_gate
from fairseq_ctxgates.context_gates.gate_labels import IGNORE
from fairseq_ctxgates.data.data_directory import Split
from tests.helpers.documents import SHORT, TEXT
from tests.helpers.fairseq_commands import GATED, labels_of
from tests.helpers.outputs import page_content
from tests.helpers.trained import Trained, train_models

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SENTENCES = [
    PageSentence(4, [["</script>", "b"]], ["s", "t"], ["u@@", "v", "w"], {"one": [0.5, -1, 0], "two": [0, 0, 2.25]}),
    PageSentence(
        5,
        [["x"], ["y", "z"]],
        ["s"],
        ["w"],
        {"one": [0.25], "two": [1.0]},
        {"one": [[0.1, 0.2, 0.7]], "two": [[0.9, 0.1]]},
        labels=["source"],
    ),
]
PAGE = Page("A & B", "bits <of> words", ["one", "two"], SENTENCES, 0.0, 2.0, "loses", "gains")


def test_the_page_holds_what_it_shows() -> None:
    found = page_content(PAGE.html())
    assert found["sentences"][0]["before"] == [["</script>", "b"]]
    assert found["sentences"][1]["attention"]["two"] == [[0.9, 0.1]]
    assert [(word["token"], word["value"], word["series"]) for word in found["top"]] == [
        ("w", 2.25, "two"),
        ("w", 1.0, "two"),
        ("u@@", 0.5, "one"),
        ("v", 0, "two"),
    ]


def test_the_page_needs_nothing_else() -> None:
    assert not re.findall(r"(?:src|href)=|https?:|url\(|@import", PAGE.html())


def in_browser(page: str, folder: Path) -> str:
    """What Chromium makes of a page. Where it is not there the test is skipped, or fails if the environment variable
    CTXGATES_REQUIRE_CHROMIUM is set."""
    if CHROMIUM is None:
        if os.environ.get("CTXGATES_REQUIRE_CHROMIUM"):
            pytest.fail("Debian's package chromium is missing")
        pytest.skip("needs Debian's package chromium")
    (folder / "page.html").write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--dump-dom", f"file://{folder}/page.html"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def main_part(shown: str) -> str:
    return shown.partition("<main>")[2].partition("</main>")[0]


@pytest.mark.process
def test_a_browser_shows_it(tmp_path: Path) -> None:
    shown = in_browser(PAGE.html(), tmp_path)
    body = main_part(shown)
    assert "<title>A &amp; B</title>" in shown
    assert " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split()) == (
        "sentence 4 </script> b s t one u v w two u v w sentence 5 x y z s one w source two w"
    )
    # The strongest colour is that of the highest value; a word without attention is not to be pointed at.
    assert 'title="+2.25" style="background-color: rgba(var(--high), 0.800);"' in body
    assert 'title="-1.00" style="background-color: rgba(var(--low), 0.400);"' in body
    assert body.count("tabindex") == 2
    links = re.findall(r'<a[^>]*href="#sentence-(\d)"[^>]*>([^<]*)</a>', shown)
    assert links[:2] == [("4", "w +2.25"), ("5", "w +1.00")]


@pytest.mark.process
@pytest.mark.parametrize("model, weights", [(0, ["0.10", "0.20", "0.70"]), (1, ["0.00", "0.90", "0.10"])])
def test_pointing_at_a_word_shows_its_attention(tmp_path: Path, model: int, weights: List[str]) -> None:
    """That of the model in whose line the word is; what a model does not read has none."""
    pointing = f"document.querySelectorAll('[tabindex]')[{model}].dispatchEvent(new Event('mouseenter'))"
    body = main_part(in_browser(PAGE.html().replace("</html>", f"<script>{pointing}</script></html>"), tmp_path))
    sentence = body.partition("sentence-5")[2]
    assert re.findall(r'title="(0\.\d\d)"[^>]*>[xyz]<', sentence) == weights
    assert [f"rgba(var(--read), {float(weight):.3f})" in sentence for weight in weights] == [True] * len(weights)


def scored(number: int, *saved: float) -> SentenceScores:
    return SentenceScores(number, True, ["a"] * len(saved), np.array(saved), np.zeros(len(saved)))


def test_the_document_is_that_of_the_sentence_or_the_one_that_saves_most() -> None:
    """What a document's first sentence saves is not the context's."""
    nearest = np.array([-1, 0, -1, 2, 3, 1, -1])  # documents, the sentences of the first not all together
    sentences = {row: scored(row + 1, value) for row, value in enumerate([0.0, 3.0, 9.0, 1.0, 1.0, 3.0, 9.0])}
    assert chosen_document(nearest, sentences) == [0, 1, 5]
    assert chosen_document(nearest, sentences, number=5) == [2, 3, 4]


def test_a_document_is_not_chosen_for_its_length() -> None:
    nearest = np.array([-1, 0, -1, 2, 3, 4])
    sentences = {row: scored(row + 1, value) for row, value in enumerate([0.0, 3.0, 0.0, 2.0, 2.0, 2.0])}
    assert chosen_document(nearest, sentences) == [0, 1]


def test_an_outlier_does_not_make_all_other_colours_pale() -> None:
    document = Document()
    document.series, document.rows = ["one"], [0]
    document.sentences = {0: PageSentence(1, [], ["a"], ["b"] * 200, values={"one": [1.5] * 199 + [100.0]})}
    assert document.page("title").range == pytest.approx(1.5)


def test_a_sentence_that_a_model_left_out_is_not_shown() -> None:
    document = Document()
    document.series, document.rows = ["one", "two"], [0, 1]
    of_both = {"one": [1.0], "two": [1.0]}
    document.sentences = {
        row: PageSentence(row + 1, [], ["a"], ["b"], values=values)
        for row, values in enumerate([{"one": [1.0]}, of_both])
    }
    assert [sentence.number for sentence in document.page("title").sentences] == [2]


def run(folder: Path, name: str, data: Path, *options: Any) -> Dict[str, Any]:
    """The data in the page of an analysis."""
    analysis.main([name, str(data), "--cpu", "--html", str(folder / "page.html"), *map(str, options)])
    return page_content((folder / "page.html").read_text(encoding="utf-8"))


@torch.no_grad()
def attention_over(inference: Inference, number: int, words: int) -> np.ndarray:
    """A model's attention over the first words that it reads, those of the preceding sentence."""
    batch = inference.sentence("test", number)
    if has_inter_sentence_gate(inference.model):
        of_layers = read_attention(inference, batch).values()
        attention = torch.stack([weights[:, 0].mean(dim=0) for weights in of_layers]).mean(dim=0)
    else:
        attention = inference.model(**batch["net_input"])[1]["attn"][0][0]
    return np.asarray(attention[:, :words])


@pytest.mark.parametrize("models", [["isg", "concatenated"], ["rnnsearch"]])
def test_the_page_of_cxmi(trained_on_documents: Trained, tmp_path: Path, models: List[str]) -> None:
    """A document, with what each word gains from each model and where the attention is."""
    trained = trained_on_documents
    table = tmp_path / "tokens.csv"
    paths = [trained[model] for model in models]
    names = ("--names", *models)
    found = run(tmp_path, "cxmi", trained.data, "--path", *paths, *names, "--sentence", 9, "--tokens", table)
    document = TEXT["test"][1]
    inferences = {model: Inference(str(trained[model]), str(trained.data), cpu=True) for model in models}
    assert found["series"] == models
    assert [sentence["number"] for sentence in found["sentences"]] == list(range(8, 8 + len(document)))
    rows = [line.split(",") for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    for place, (sentence, (source, target)) in enumerate(zip(found["sentences"], document)):
        assert sentence["source"] == source.split()
        assert sentence["tokens"] == [*target.split(), "</s>"]
        before = document[place - 1][0].split() if place else []
        assert sentence["before"] == ([before] if place else [])
        for model in models:
            expected = [float(row[-1]) for row in rows if row[0] == model and int(row[1]) == sentence["number"]]
            assert sentence["values"][model] == pytest.approx(expected, abs=1e-4)
            if not place:
                assert model not in sentence["attention"]
                continue
            attention = np.array(sentence["attention"][model])
            assert attention.shape == (len(sentence["tokens"]), len(before))
            assert (attention >= 0).all() and (attention.sum(axis=1) <= 1.01).all() and attention.max() > 0.01
            weights = attention_over(inferences[model], sentence["number"], len(before))
            np.testing.assert_allclose(attention, weights, rtol=0, atol=1e-3)


def test_the_page_of_sentences_that_are_cut(trained_on_documents: Trained, tmp_path: Path) -> None:
    """The attention is on the last words of the preceding sentence, which are read."""
    trained = trained_on_documents
    few = ("--model-overrides", "{'max_source_positions': 8}")
    found = run(tmp_path, "cxmi", trained.data, "--path", trained["concatenated"], *few, "--sentence", 9)
    cut = 0
    for sentence in found["sentences"][1:]:
        (before,) = sentence["before"]
        room = 8 - len(sentence["source"]) - 2  # with end of sentence and separator
        cut += room < len(before)
        (attention,) = sentence["attention"].values() or [[]]
        assert {len(row) for row in attention} == ({min(room, len(before))} if room else set())
    assert cut


@pytest.mark.parametrize("model", ["isg", "concatenated"])
def test_the_page_of_sentences_that_are_truncated(trained_on_documents: Trained, tmp_path: Path, model: str) -> None:
    """``--truncate-source``: the page shows the words that are read."""
    trained = trained_on_documents
    few = ("--model-overrides", "{'max_source_positions': 4, 'truncate_source': True}")
    found = run(tmp_path, "cxmi", trained.data, "--path", trained[model], *few, "--sentence", 9)
    document = TEXT["test"][1]
    assert any(len(source.split()) > 3 for source, _ in document)
    for place, (sentence, (source, _)) in enumerate(zip(found["sentences"], document)):
        assert sentence["source"] == source.split()[:3]
        assert sentence["before"] == ([document[place - 1][0].split()[:3]] if place else [])
        for attention in sentence["attention"].values():
            assert {len(row) for row in attention} <= {len(before) for before in sentence["before"]}


def test_the_page_of_gates(trained_on_documents: Trained, tmp_path: Path) -> None:
    data = trained_on_documents.data
    trained = train_models(data, tmp_path, {"gated": (*GATED, "--max-epoch", 1)})
    found = run(tmp_path, "gates", data, "--path", trained["gated"], "--gen-subset", "valid", "--sentence", 3)
    assert [sentence["number"] for sentence in found["sentences"]] == list(range(3, 11))
    assert found["series"] == ["layer 1", "layer 2"]
    assert (found["low"], found["high"]) == ("target", "source")
    inference = Inference(str(trained["gated"]), str(data), cpu=True)
    targets = Split(data, "valid", "de", "en").load_language("en")
    for sentence in found["sentences"]:
        labels = labels_of(targets[sentence["number"] - 1]).tolist()
        assert sentence["labels"] == ["" if label == IGNORE else LABEL_NAMES[label] for label in labels]
        for layer, gates in read_gates(inference, inference.sentence("valid", sentence["number"])).items():
            assert sentence["values"][f"layer {layer}"] == pytest.approx(gates[:, 0].mean(dim=-1).tolist(), abs=1e-3)
    found = run(tmp_path, "gates", data, "--path", trained["gated"], "--gen-subset", "valid", *SHORT)
    assert max(len(sentence["tokens"]) for sentence in found["sentences"]) == 6
    assert [sentence["number"] for sentence in found["sentences"]] != list(range(1, 9))

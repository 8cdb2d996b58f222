"""Bits that the preceding sentence saves, on scores written out by hand, against fairseq's own scorer, and by the
command."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from fairseq.sequence_scorer import SequenceScorer

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis import cxmi
from fairseq_ctxgates.analysis.cxmi_report import (
    cxmi_figure,
    drawn_sentence,
    places_of_words,
    summary_table,
    token_table,
)
from fairseq_ctxgates.analysis.cxmi_scores import Measured, SentenceScores, measure
from fairseq_ctxgates.analysis.inference import Inference
from fairseq_ctxgates.analysis.preceding_context import preceding_attention
from fairseq_ctxgates.analysis.scores import token_log_probs
from fairseq_ctxgates.checkpoints.loading import load
from fairseq_ctxgates.errors import UserError
from tests.helpers.documents import DOCUMENTS, SHORT, TEXT, write_preceding
from tests.helpers.fairseq_commands import validate
from tests.helpers.outputs import output_files
from tests.helpers.trained import Trained

# --- numbers ----------------------------------------------------------------------------------------------------------

FIRST = SentenceScores(1, True, ["a", "</s>"], np.array([-1.0, -1.0]), np.array([-2.0, -3.0]))
SECOND = SentenceScores(2, False, ["</s>"], np.array([-2.0]), np.array([-2.0]))


def test_cxmi_by_hand() -> None:
    """One and two bits are saved, and none: three in three tokens."""
    found = measure([FIRST, SECOND], resamples=1000, seed=1)
    assert (found.sentences, found.target_tokens, found.bits.value) == (2, 3, pytest.approx(1.0))
    assert found.cross_entropy_with == pytest.approx(4 / 3)
    assert found.cross_entropy_without == pytest.approx(7 / 3)
    # A quarter of the resamples hold the second sentence twice, a quarter the first.
    assert (found.bits.low, found.bits.high) == (pytest.approx(0.0), pytest.approx(1.5))


def test_no_sentences() -> None:
    measured = Measured("isg", "isg.pt", [], {"without one": measure([], resamples=10, seed=1)})
    assert summary_table([measured]).text().split()[-6:] == ["one", "0", "0", "—", "—", "—"]


@pytest.mark.parametrize(
    ("kind", "tokens", "words"),
    [
        ("subword_nmt", ["lo@@", "w@@", "er", "it", "</s>"], ["lower", "it", "</s>"]),
        ("sentencepiece", ["▁low", "er", "▁", "it", "</s>"], ["lower", "it", "</s>"]),
        ("none", ["lo@@", "w@@", "er", "it", "</s>"], ["lo@@", "w@@", "er", "it", "</s>"]),
    ],
)
def test_words_gain_what_their_tokens_do(kind: str, tokens: List[str], words: List[str]) -> None:
    """The bits of one word are those of its tokens together; the end of sentence is a word of its own."""
    bits = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    model = Measured("x", "x.pt", [SentenceScores(3, True, tokens, -bits, -3 * bits)], {})
    rows = token_table([model], kind).rows
    assert [row[4] for row in rows] == words
    assert [row[3] for row in rows] == list(range(1, 1 + len(words)))
    sums = {"subword_nmt": [7, 8, 16], "sentencepiece": [3, 12, 16], "none": [1, 2, 4, 8, 16]}[kind]
    assert [row[5:] for row in rows] == [[-total, -3.0 * total, 2.0 * total] for total in sums]


@pytest.mark.parametrize(
    ("tokens", "places"),
    [
        (["▁a", "▁", "▁b", "c", "</s>"], [[0], [1, 2, 3], [4]]),  # a space alone
        (["▁a", "▁", "</s>"], [[0, 1], [2]]),
        (["▁a▁b", "c", "▁d", "</s>"], [[0, 1], [2], [3]]),  # a token of two words
        (["▁", "</s>"], [[0], [1]]),
        (["</s>"], [[0]]),
    ],
)
def test_each_token_is_in_one_word(tokens: List[str], places: List[List[int]]) -> None:
    assert places_of_words(tokens, "sentencepiece") == places


def test_the_figure_shows_the_saved_bits_of_sentences_and_of_tokens() -> None:
    figure: Any = cxmi_figure([FIRST, SECOND], measure([FIRST, SECOND], 10, 1), FIRST)
    figure.canvas.draw()
    above, below = figure.axes
    assert sum(bar.get_height() for bar in above.patches[:40]) == 2
    assert above.get_lines()[0].get_xdata()[0] == pytest.approx(1.0)
    assert [bar.get_height() for bar in below.patches] == [1.0, 2.0]
    assert [label.get_text() for label in below.get_xticklabels()] == ["a", "</s>"]
    assert "saves 3.00 bits" in below.get_title()
    assert all("bits" in text for text in (above.get_xlabel(), below.get_ylabel()))


def test_the_sentence_drawn_by_itself_has_a_preceding_one() -> None:
    """Against another model a sentence gains without one as well, and nothing of that is the context's."""
    more = replace(SECOND, with_context=np.array([7.0]))
    assert drawn_sentence([more, FIRST]) is FIRST
    assert drawn_sentence([FIRST, more], number=2) is more
    figure: Any = cxmi_figure([FIRST], measure([FIRST], 10, 1), more)
    assert figure.axes[1].get_title() == "Sentence 2: without a preceding sentence, the difference is 9.00 bits"


def test_a_sentence_is_not_drawn_for_its_length() -> None:
    short = replace(FIRST, number=7, tokens=["a"], with_context=np.array([5.0]), without=np.array([0.0]))
    long = replace(FIRST, number=8, tokens=["a"] * 3, with_context=np.full(3, 4.0), without=np.zeros(3))
    assert drawn_sentence([long, short]) is short


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def trained(trained_on_documents: Trained) -> Trained:
    return trained_on_documents


@pytest.mark.parametrize("model", ["isg", "plain", "concatenated", "stock"])
def test_scores_are_those_of_fairseq(trained: Trained, model: str) -> None:
    inference = Inference(str(trained[model]), str(trained.data), cpu=True)
    scorer = SequenceScorer(inference.task.target_dictionary)
    sentences = 0
    for batch in inference.batches("test", batch_size=6):
        for found, (expected,) in zip(token_log_probs(inference, batch), scorer.generate([inference.model], batch)):
            np.testing.assert_allclose(found, expected["positional_scores"].numpy(), rtol=0, atol=1e-5)
            assert found.mean() == pytest.approx(float(expected["score"]), abs=1e-5)
            sentences += 1
    assert sentences == sum(DOCUMENTS["test"])


def run(trained: Trained, folder: Path, model: str, *options: Any) -> Dict[str, Any]:
    """The JSON report of the command, which also writes the other files."""
    files = [f"--{option}={path}" for option, path in output_files(folder / "new", "cxmi").items()]
    arguments = ["cxmi", trained.data, "--path", trained[model], "--cpu", *files, *options]
    analysis.main([str(argument) for argument in arguments])
    assert (folder / "new" / "cxmi.png").read_bytes().startswith(b"\x89PNG")
    (report,) = json.loads((folder / "new" / "cxmi.json").read_text(encoding="utf-8"))["systems"]
    assert report["path"] == str(trained[model])
    found: Dict[str, Any] = report
    return found


def rows_of(folder: Path) -> List[Dict[str, str]]:
    return list(csv.DictReader((folder / "new" / "cxmi.csv").read_text(encoding="utf-8").splitlines()))


NULL = ("--model-overrides", "{'inter_sentence_ablation': 'null'}")


def test_the_same_model_without_its_preceding_sentences(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tmp_path / "new" / "tokens.csv"
    report = run(trained, tmp_path, "isg", "--gen-subset", "valid", "--max-tokens", 40, "--tokens", tokens)
    # As fairseq-validate measures the two.
    entropies = [float(validate(trained.data, trained["isg"], *more)["valid_nll_loss"]) for more in ((), NULL)]
    found = report["all"]
    assert found["cross_entropy_with"] == pytest.approx(entropies[0], abs=2e-3)
    assert found["cross_entropy_without"] == pytest.approx(entropies[1], abs=2e-3)
    assert found["cxmi"] == pytest.approx(found["cross_entropy_without"] - found["cross_entropy_with"], abs=1e-6)
    assert abs(found["cxmi"]) > 1e-3
    assert found["cxmi_low"] < found["cxmi"] < found["cxmi_high"]
    # The first sentences of two documents have none: nothing is saved.
    assert report["without_one"]["sentences"] == 2
    assert report["without_one"]["cxmi"] == pytest.approx(0, abs=1e-6)
    rows = rows_of(tmp_path)
    assert [row["preceded"] for row in rows] == ["no", *["yes"] * 4] * 2
    saved = sum(float(row["saved (bits/token)"]) * int(row["target tokens"]) for row in rows)
    assert saved / found["target_tokens"] == pytest.approx(found["cxmi"], abs=1e-6)
    assert found["target_tokens"] == sum(
        len(target.split()) + 1 for document in TEXT["valid"] for _, target in document
    )
    assert "CXMI (bits/token)" in capsys.readouterr().out
    words = list(csv.DictReader(tokens.read_text(encoding="utf-8").splitlines()))
    targets = [target for document in TEXT["valid"] for _, target in document]
    assert [row["token"] for row in words] == [word for target in targets for word in (*target.split(), "</s>")]
    assert [row["position"] for row in words if row["sentence"] == "2"] == list(
        map(str, range(1, 2 + len(targets[1].split())))
    )
    assert sum(float(row["saved (bits)"]) for row in words) == pytest.approx(saved, abs=1e-4)
    assert all(float(row["saved (bits)"]) == pytest.approx(0, abs=1e-6) for row in words if row["preceded"] == "no")


def test_another_model_as_the_baseline(trained: Trained, tmp_path: Path) -> None:
    report = run(trained, tmp_path, "isg", "--gen-subset", "valid", "--baseline-path", trained["plain"])
    expected = [float(validate(trained.data, trained[model])["valid_nll_loss"]) for model in ("isg", "plain")]
    assert report["all"]["cxmi"] == pytest.approx(expected[1] - expected[0], abs=4e-3)


def refuse_to_score(*_: object) -> None:
    pytest.fail("this comes before scoring")


def test_concatenated_sentences(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without: the same model on the sentences alone, as data in which none has a predecessor give them."""
    found = run(trained, tmp_path, "concatenated", "--gen-subset", "valid")
    alone = Path(shutil.copytree(trained.data, tmp_path / "alone"))
    write_preceding(alone, {split: [1] * sum(lengths) for split, lengths in DOCUMENTS.items()})
    expected = [float(validate(data, trained["concatenated"])["valid_nll_loss"]) for data in (trained.data, alone)]
    assert found["all"]["cross_entropy_with"] == pytest.approx(expected[0], abs=2e-3)
    assert found["all"]["cross_entropy_without"] == pytest.approx(expected[1], abs=2e-3)
    assert abs(found["with_a_preceding_sentence"]["cxmi"]) > 1e-3
    assert found["without_one"]["cxmi"] == pytest.approx(0, abs=1e-6)
    monkeypatch.setattr(cxmi, "score_split", refuse_to_score)
    with pytest.raises(UserError, match="no sentence of valid has a preceding one: there is nothing to draw"):
        run(replace(trained, data=alone), tmp_path, "concatenated", "--gen-subset", "valid")


@pytest.mark.parametrize("model", ["isg", "concatenated"])
def test_the_page_of_a_model_that_was_trained_on_padded_sentences(trained: Trained, tmp_path: Path, model: str) -> None:
    state = load(trained[model], map_location="cpu")
    state["cfg"]["task"]["required_seq_len_multiple"] = 8
    torch.save(state, tmp_path / "padded.pt")
    pages = []
    for path in (trained[model], tmp_path / "padded.pt"):
        options = ["--path", path, "--names", "model", "--cpu", "--html", tmp_path / "page.html"]
        analysis.main(["cxmi", *map(str, [trained.data, *options])])
        pages.append((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert pages[0] == pages[1]


def test_a_sentence_that_was_cut_has_no_attention_over_the_ones_before(trained: Trained) -> None:
    inference = Inference(str(trained["concatenated"]), str(trained.data), cpu=True)
    batch = inference.sentence("test", 2)
    read = batch["net_input"]["src_tokens"].size(1)
    assert preceding_attention(inference, batch, [4], read - 4) is not None
    assert preceding_attention(inference, batch, [4], read + 1) is None


@pytest.mark.parametrize("ablation", ["null", "random"])
def test_an_ablation_has_no_attention_over_words(trained: Trained, ablation: str) -> None:
    inference = Inference(
        str(trained["isg"]), str(trained.data), cpu=True, overrides={"inter_sentence_ablation": ablation}
    )
    batch = inference.sentence("valid", 2)
    assert preceding_attention(inference, batch, [5], batch["net_input"]["src_tokens"].size(1)) is None


def test_a_baseline_of_the_other_direction(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cxmi, "score_sentences", refuse_to_score)
    monkeypatch.setattr(Inference, "direction", property(lambda model: "en-de" if "plain" in model.path else "de-en"))
    with pytest.raises(UserError, match="plain/checkpoint_last.pt translates en-de, .*isg/checkpoint_last.pt de-en: c"):
        run(trained, tmp_path, "isg", "--baseline-path", trained["plain"])


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("plain", (), "plain/checkpoint_last.pt reads no preceding sentence: give --path a model trained with"),
        ("stock", (), "stock/checkpoint_last.pt reads no preceding sentence"),
        ("isg", ("--sentence", 21), "--sentence 21: split 'test' has sentences 1 to 20"),
        ("isg", ("--baseline-path", "missing.pt"), "missing.pt not found: give a checkpoint"),
        ("isg", ("--gen-subset", "tset"), "no split 'tset'"),
        ("isg", ("--sentence", 4, *SHORT), "--sentence 4: it is too long for .*isg/checkpoint_last.pt, choose another"),
        ("isg", NULL, "--model-overrides: 'inter_sentence_ablation' takes away what cxmi measures"),
    ],
)
def test_mistakes_are_explained(
    trained: Trained, tmp_path: Path, model: str, options: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cxmi, "score_sentences", refuse_to_score)
    with pytest.raises(UserError, match=message):
        run(trained, tmp_path, model, *options)

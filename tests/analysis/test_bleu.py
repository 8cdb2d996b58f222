"""BLEU by buckets, and of several systems side by side: worked by hand, beside sacreBLEU, and the commands end to
end."""

from __future__ import annotations

import csv
import json
import math
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis.bleu_by_unknowns import unknown_words
from fairseq_ctxgates.analysis.buckets import Buckets, bucket_figure, score_buckets
from fairseq_ctxgates.analysis.compare import comparison_figure, paired_bootstrap
from fairseq_ctxgates.analysis.metrics import SentencesOfDocuments, WholeDocuments, join_documents
from fairseq_ctxgates.analysis.systems import read_translations
from fairseq_ctxgates.data.subwords import join_subwords
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize, make_dictionary


def test_translations_with_scores_that_are_not_finite(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("H-0\t-inf\ta\nH-1\t-0.5\tb\n")
    assert read_translations(tmp_path / "out") == ["a", "b"]


# --- buckets ----------------------------------------------------------------------------------------------------------


def test_a_bound_is_the_last_of_its_bucket() -> None:
    buckets = Buckets.parse("2,3,7")
    assert buckets.names == ["≤2", "3", "4–7", ">7"]
    assert [buckets.of(number) for number in (0, 2, 3, 4, 7, 8, 99)] == [0, 0, 1, 2, 2, 3, 3]
    assert Buckets.parse("0,1,2").names == ["0", "1", "2", ">2"]
    assert Buckets.parse("5").names == ["≤5", ">5"]


def test_a_start_is_the_first_of_its_bucket() -> None:
    """Li et al. 2020, Figure 2: [0,10), [10,20), ..., [60,130)."""
    buckets = Buckets.parse_starts("10,20,60")
    assert buckets.names == ["≤9", "10–19", "20–59", ">59"]
    assert [buckets.of(number) for number in (0, 9, 10, 19, 20, 59, 60, 129)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert Buckets.parse_starts("1,2,10").names == ["0", "1", "2–9", ">9"]


@pytest.mark.parametrize("text", ["10,5", "5,5", "-1,2", "a", "", "1,,2", "1.5"])
def test_a_list_that_is_no_buckets_is_refused(text: str) -> None:
    for parse in (Buckets.parse, Buckets.parse_starts):
        with pytest.raises(ArgumentTypeError):
            parse(text)


def test_the_first_bucket_starts_at_0_by_itself() -> None:
    with pytest.raises(ArgumentTypeError, match="'0,10' must rise from number to number, from 1 or more"):
        Buckets.parse_starts("0,10")


REFERENCE = ["a b c d e", "f g h i j", "k l m n o p q r s t"]
WORSE = ["a b c d e", "f g h i x", "k l m n o"]


def scores_by_hand() -> Any:
    # Bucket of the first two sentences: 9 of 10 words, 7 of 8 bigrams, 5 of 6 trigrams, 3 of 4 4-grams are right, and
    # the length is the reference's. Bucket of the third: all n-grams right, 5 words for 10, so the brevity penalty is
    # exp(1 - 10/5). The last bucket is empty.
    systems = [("right", REFERENCE), ("worse", WORSE)]
    return score_buckets(systems, [REFERENCE], [3, 4, 9], Buckets((4, 9)), BLEU(tokenize="none"))


def test_bleu_of_each_bucket_worked_by_hand() -> None:
    scores = scores_by_hand()
    first = 100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25
    assert scores.sentences == [2, 1, 0]
    assert scores.bleu[0] == [pytest.approx(100), pytest.approx(100), None]
    assert scores.bleu[1] == [pytest.approx(first), pytest.approx(100 * math.exp(-1)), None]
    assert scores.differences(1) == [pytest.approx(first - 100), pytest.approx(100 * math.exp(-1) - 100), None]
    # Together 14 of 15 words, 11 of 12, 8 of 9, 5 of 6, and 15 words for 20.
    together = 100 * math.exp(1 - 20 / 15) * (14 / 15 * 11 / 12 * 8 / 9 * 5 / 6) ** 0.25
    assert scores.total == [pytest.approx(100), pytest.approx(together)]
    table = scores.table("words")
    assert list(table.columns) == ["words", "sentences", "%", "right", "worse", "Δ worse"]
    assert table.rows[2] == [">9", 0, 0.0, None, None, None]
    assert table.rows[0] == ["≤4", 2, *map(pytest.approx, (200 / 3, 100, first, first - 100))]
    assert table.rows[3] == ["all", 3, *map(pytest.approx, (100, 100, together, together - 100))]


def test_the_picture_shows_what_was_computed_and_an_empty_bucket_as_nothing() -> None:
    scores = scores_by_hand()
    figure: Any = bucket_figure(scores, "source words", "about")
    figure.canvas.draw()
    share, bleu, differences = figure.axes
    assert [bar.get_height() for bar in share.patches] == [pytest.approx(200 / 3), pytest.approx(100 / 3), 0]
    assert [bar.get_height() for bar in bleu.patches[:2]] == pytest.approx([100, 100])
    assert math.isnan(bleu.patches[2].get_height())
    assert differences.patches[3].get_height() == pytest.approx(scores.differences(1)[0])
    assert differences.get_xlabel() == "source words"
    assert [text.get_text() for text in bleu.get_legend().get_texts()] == ["right", "worse"]
    assert [text.get_text() for text in differences.get_xticklabels()] == ["≤4", "5–9", ">9"]


def test_unknown_words_are_those_that_the_dictionary_lacks() -> None:
    dictionary = make_dictionary(["a b@@ c"])
    assert unknown_words(["a b@@ c", "a x a", "<unk> y y", ""], dictionary) == [0, 1, 3, 0]


@pytest.mark.parametrize(
    ("kind", "subwords"),
    [
        ("subword_nmt", "lo@@ wer it"),
        ("sentencepiece", "▁low er ▁it"),
        ("wordpiece", "_low er _it"),
        ("letter", "l o w e r | i t |"),
        ("_EOW", "low er_EOW it_EOW"),
    ],
)
def test_text_beside_subwords_stays_text(kind: str, subwords: str) -> None:
    """The source may be in subwords, references and translations in words."""
    assert join_subwords([subwords, "lower it", ""], kind) == ["lower it", "lower it", ""]


# --- commands by bucket -----------------------------------------------------------------------------------------------

SOURCE = ["v w@@ x", "v", "n v n n v v", "w@@ x n"]
TARGET = ["one two three four", "five six seven eight", "nine ten one two five six", "two three four five"]
FIRST = ["one two three four", "five six seven", "nine ten two two five six", "two three three five"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose test split has the unknown word n, references, and translations as text and as
    fairseq-generate prints them."""
    folder = tmp_path_factory.mktemp("bleu")
    binarize(folder / "data", {"train": [("v w@@ x", "one")], "test": list(zip(SOURCE, TARGET))}, "de", "en")
    for name, lines in (("test.en", TARGET), ("test.de", SOURCE), ("first.txt", FIRST), ("short.txt", FIRST[:3])):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    generated = [f"H-{row}\t-0.5\t{TARGET[row].replace('three', 'thr@@ ee')}" for row in (2, 0, 3, 1)]
    (folder / "second.out").write_text("\n".join(generated), encoding="utf-8")
    return folder


def analyze(what: str, folder: Path, *options: Any) -> Any:
    """Run an analysis of both systems and return its JSON file."""
    report = folder / "report.json"
    systems = ["--sys", folder / "first.txt", folder / "second.out", "--ref", folder / "test.en"]
    analysis.main([what, *map(str, ["--tokenize", "none", *options, *systems, "--json", report])])
    return json.loads(report.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("what", "buckets", "sentences"),
    [
        # Words: 2, 1, 6, 2, subwords joined.
        ("bleu-by-length", ("--buckets", "1,2,5"), {"≤1": 1, "2": 2, "3–5": 0, ">5": 1}),
        ("bleu-by-length", ("--bucket-starts", "2,3,6"), {"≤1": 1, "2": 2, "3–5": 0, ">5": 1}),
        ("bleu-by-length", ("--bucket-starts", "1,2,5"), {"0": 0, "1": 1, "2–4": 2, ">4": 1}),
        # n is unknown: 0, 0, 3, 1.
        ("bleu-by-unknowns", ("--buckets", "0,1,2"), {"0": 2, "1": 1, "2": 0, ">2": 1}),
    ],
)
def test_buckets_are_scored_as_sacrebleu_scores_their_sentences(
    folder: Path, what: str, buckets: tuple[str, str], sentences: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [folder / "table.csv", folder / "buckets.png"]
    options = [*buckets, "--csv", files[0], "--figure", files[1]]
    report = analyze(what, folder, folder / "data", *options)
    assert {row["bucket"]: row["sentences"] for row in report["buckets"]} == sentences
    assert report["all"]["second"] == pytest.approx(100)
    assert report["all"]["first"] == pytest.approx(sacrebleu.corpus_bleu(FIRST, [TARGET], tokenize="none").score)
    single = next(row for row in report["buckets"] if row["bucket"].startswith(">"))
    expected = sacrebleu.corpus_bleu([FIRST[2]], [[TARGET[2]]], tokenize="none").score
    assert single["bleu"] == {"first": pytest.approx(expected), "second": pytest.approx(100)}
    with open(files[0], encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["sentences"]) for row in rows] == [*sentences.values(), 4]
    assert [row["Δ second"] for row in rows if row["sentences"] == "0"] == [""]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "tok:none" in shown and "—" in shown
    # The source as text gives the same.
    again = analyze(what, folder, folder / "data", "--source", folder / "test.de", *buckets)
    assert again["buckets"] == report["buckets"]


@pytest.mark.parametrize("source", [(), ("--source", "TEXT")], ids=["of a split", "of a text"])
def test_data_of_sentencepiece_need_its_option(tmp_path: Path, folder: Path, source: Sequence[str]) -> None:
    pieces = ["▁v ▁w x", "▁v", "▁n ▁v n ▁n v v", "▁w x ▁n n"]
    binarize(
        tmp_path / "data", {"train": [(line, "one") for line in pieces], "test": list(zip(pieces, TARGET))}, "de", "en"
    )
    (tmp_path / "pieces.de").write_text("\n".join(pieces), encoding="utf-8")
    options = [word.replace("TEXT", str(tmp_path / "pieces.de")) for word in source]
    with pytest.raises(UserError, match="dict.de.txt holds the subwords of sentencepiece: give --remove-bpe sentence"):
        analyze("bleu-by-length", folder, tmp_path / "data", *options)
    options += ["--remove-bpe", "sentencepiece", "--buckets", "1,2"]
    report = analyze("bleu-by-length", folder, tmp_path / "data", *options)
    assert {row["bucket"]: row["sentences"] for row in report["buckets"]} == {"≤1": 1, "2": 2, ">2": 1}


def test_only_the_translations_are_of_sentencepiece(tmp_path: Path, folder: Path) -> None:
    """The option joins their subwords; the source is of words."""
    data = binarize(tmp_path, {"train": [("v w x", "one")], "test": [("v w", "t")] * len(TARGET)}, "de", "en")
    report = analyze("bleu-by-length", folder, data, "--remove-bpe", "sentencepiece", "--buckets", "1,2")
    assert {row["bucket"]: row["sentences"] for row in report["buckets"]} == {"≤1": 0, "2": 4, ">2": 0}


@pytest.mark.parametrize("name", ["sentences", "source words", "%"])
def test_a_system_with_the_name_of_a_column(folder: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"a system is named '{name}', like a column of the table"):
        analyze("bleu-by-length", folder, folder / "data", "--names", "first", name)


def test_a_tokenizer_that_is_not_installed_is_explained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(UserError, match="--tokenize ja-mecab: .*install"):
        analyze("compare", folder, "--tokenize", "ja-mecab")


# --- compare ----------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_sacrebleu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [folder / "table.csv", folder / "scores.png"]
    report = analyze("compare", folder, "--resamples", "100", "--csv", files[0], "--figure", files[1])
    first, second = report["systems"]
    assert first["BLEU"]["score"] == pytest.approx(BLEU(tokenize="none").corpus_score(FIRST, [TARGET]).score)
    assert first["chrF2"]["score"] == pytest.approx(CHRF().corpus_score(FIRST, [TARGET]).score)
    assert second["BLEU"] == {
        "score": pytest.approx(100),
        "mean": pytest.approx(100),
        "half_width": 0,
        "p": second["BLEU"]["p"],
    }
    assert first["BLEU"]["p"] is None and 0 < second["BLEU"]["p"] < 1
    assert report["resampled"] == {"unit": "sentences", "number": 4}
    assert report["signatures"]["BLEU"].startswith("nrefs:1|bs:100|seed:12345|case:mixed|eff:no|tok:none")
    with open(files[0], encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for row, system in zip(rows, (first, second)):
        for metric in ("BLEU", "chrF2"):
            values = [system[metric][name] for name in ("score", "half_width", "p")]
            cells = [row[f"{heading}{metric}"] for heading in ("", "± ", "p ")]
            assert cells == ["" if value is None else str(value) for value in values]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert report["signatures"]["chrF2"] in shown and "second" in shown


def test_several_references_and_case(folder: Path) -> None:
    upper = folder / "upper.txt"
    upper.write_text("\n".join(FIRST).upper(), encoding="utf-8")
    options = ["--ref", folder / "test.en", upper, "--lowercase"]
    analysis.main(["compare", "--sys", str(folder / "first.txt"), *map(str, options), "--json", str(folder / "a.json")])
    (system,) = json.loads((folder / "a.json").read_text(encoding="utf-8"))["systems"]
    assert [system[metric]["score"] for metric in ("BLEU", "chrF2")] == pytest.approx([100, 100])


def test_subwords_are_joined_in_translations_and_references(folder: Path) -> None:
    for name, text in (("pieces.txt", "thr@@ ee fo@@ ur five six"), ("whole.txt", "three four five six")):
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    for system, reference in (("pieces.txt", "whole.txt"), ("whole.txt", "pieces.txt")):
        paths = [str(folder / name) for name in (system, reference, "joined.json")]
        analysis.main(["compare", "--sys", paths[0], "--ref", paths[1], "--json", paths[2]])
        (found,) = json.loads((folder / "joined.json").read_text(encoding="utf-8"))["systems"]
        assert found["BLEU"]["score"] == pytest.approx(100), system


def test_one_system_alone_and_systems_that_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = {"BLEU": BLEU(tokenize="none")}
    for seed in ("0", "none", "12345"):  # with the first two, sacreBLEU draws other resamples for each system
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        scores = paired_bootstrap([("a", FIRST), ("b", FIRST)], [TARGET], metrics, 50)
        assert scores.by_metric["BLEU"][1].score == scores.by_metric["BLEU"][0].score
        assert [score.p for score in scores.by_metric["BLEU"]] == [None, None]
    louder = [line.upper() for line in FIRST]
    lowercase = {"BLEU": BLEU(tokenize="none", lowercase=True), "chrF2": CHRF(lowercase=True)}
    same = paired_bootstrap([("a", FIRST), ("b", louder)], [TARGET], lowercase, 50)
    assert [score.p for scores in same.by_metric.values() for score in scores] == [None] * 4
    figure = comparison_figure(scores, "about")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert len(paired_bootstrap([("a", FIRST)], [TARGET], metrics, 50).table().rows) == 1


# --- documents, and other metrics -------------------------------------------------------------------------------------

DOCUMENTS = np.array([0, 0, 1, 2, 2, 2])
SIX = [
    f"{word} runs over the old bridge at {number}" for number, word in enumerate(["he", "she", "it", "we", "you", "I"])
]
CHANGED = [line.replace("old", "new") if number % 2 else line for number, line in enumerate(SIX)]


def test_the_bootstrap_over_documents_draws_documents() -> None:
    """The score of the sentences is what it was; the resamples are those of the documents' sums."""
    plain, of_documents = BLEU(tokenize="none"), SentencesOfDocuments(BLEU(tokenize="none"))
    joined = [join_documents(lines, DOCUMENTS) for lines in (CHANGED, SIX)]
    assert [text.count("\n") + 1 for text in joined[0]] == [2, 1, 3]
    metrics: dict[str, Any] = {"BLEU": of_documents}
    scores = paired_bootstrap([("a", joined[0])], [joined[1]], metrics, 500)
    score = scores.by_metric["BLEU"][0]
    assert score.score == pytest.approx(plain.corpus_score(CHANGED, [SIX]).score)
    statistics = np.array(plain._extract_corpus_statistics(CHANGED, [SIX]))
    sums = np.stack([statistics[DOCUMENTS == number].sum(axis=0) for number in range(3)])
    draws = np.random.default_rng(12345).choice(3, size=(500, 3), replace=True)
    expected = [plain._compute_score_from_stats(sums[draw].sum(axis=0)).score for draw in draws]
    assert score.mean == pytest.approx(np.mean(expected), abs=1e-4)


def test_a_document_as_one_segment() -> None:
    joined = [join_documents(lines, DOCUMENTS) for lines in (CHANGED, SIX)]
    whole = [[text.replace("\n", " ") for text in texts] for texts in joined]
    metrics: dict[str, Any] = {"chrF of documents": WholeDocuments(CHRF())}
    scores = paired_bootstrap([("a", joined[0])], [joined[1]], metrics, 50)
    assert scores.by_metric["d-chrF2"][0].score == pytest.approx(CHRF().corpus_score(whole[0], [whole[1]]).score)


def write(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_compare_with_documents_and_segment_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    systems = [write(tmp_path / "plain.txt", CHANGED), write(tmp_path / "better.txt", SIX)]
    reference, names = write(tmp_path / "ref.txt", SIX), write(tmp_path / "ref.docids", DOCUMENTS.tolist())
    numbers = [[0.5, 0.25, 0.75, 0.5, 0.5, 0.5], [0.6, 0.35, 0.85, 0.6, 0.6, 0.6]]
    plain = write(tmp_path / "plain.comet", numbers[0])
    printed = [f"better.txt\tSegment {number}\tscore: {score:.4f}" for number, score in enumerate(numbers[1])]
    better = write(tmp_path / "better.comet", [*printed, "better.txt\tscore: 0.6000"])
    options = ["--ref", reference, "--sys", *systems, "--tokenize", "none", "--documents", names, "--resamples", 200]
    options += ["--segment-scores", f"COMET={plain}", f"COMET={better}", "--json", tmp_path / "scores.json"]
    analysis.main(["compare", *map(str, options)])
    report = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    first, second = report["systems"]
    assert report["resampled"] == {"unit": "documents", "number": 3}
    assert list(first) == ["system", "BLEU", "chrF2", "d-BLEU", "d-chrF2", "COMET"]
    assert (first["COMET"]["score"], second["COMET"]["score"]) == (pytest.approx(0.5), pytest.approx(0.6))
    assert second["COMET"]["p"] == pytest.approx(1 / 201), "each document gains as much"
    assert second["BLEU"]["score"] == pytest.approx(100) == second["d-BLEU"]["score"]
    shown = capsys.readouterr().out
    assert "6 sentences in 3 documents, which were resampled" in shown
    assert "few documents (3): the intervals are too narrow, and p is too small" in shown
    assert "COMET: mean of the segments' scores|seed:12345|bs:200" in shown
    assert "0.6000" in shown


def test_one_sentence_has_no_p(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, [line]) for name, line in (("ref", SIX[1]), ("a", SIX[1]), ("b", CHANGED[1]))]
    report = tmp_path / "report.json"
    analysis.main(["compare", "--ref", *map(str, [paths[0], "--sys", *paths[1:], "--json", report])])
    first, second = json.loads(report.read_text(encoding="utf-8"))["systems"]
    assert second["BLEU"]["score"] < first["BLEU"]["score"]
    assert second["BLEU"]["p"] is None


def test_one_document_cannot_be_resampled(tmp_path: Path) -> None:
    """Every resample would be the same, and every difference certain."""
    reference, system = write(tmp_path / "ref.txt", SIX), write(tmp_path / "a.txt", CHANGED)
    names = write(tmp_path / "docids", ["one"] * 6)
    with pytest.raises(UserError, match="docids: it names one document, .*: leave out --documents"):
        analysis.main(["compare", "--ref", str(reference), "--sys", str(system), "--documents", str(names)])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([0.5] * 5, "a.comet has the scores of 5 segments, but .*ref.txt has 6"),
        ([0.5, "nan", *[0.5] * 4], "a.comet, line 2: 'nan' is not a segment's score"),
        (["a table of", "a.txt\tSegment 0\tscore: nan"], "a.comet, line 2: 'nan' is not a segment's score"),
        ([0.5, "", *[0.5] * 4], "a.comet, line 2: '' is not a segment's score"),
    ],
)
def test_segment_scores_that_do_not_fit(tmp_path: Path, lines: Sequence[object], message: str) -> None:
    files = [write(tmp_path / name, SIX) for name in ("ref.txt", "a.txt")]
    scores = write(tmp_path / "a.comet", lines)
    with pytest.raises(UserError, match=message):
        analysis.main(
            ["compare", "--ref", str(files[0]), "--sys", str(files[1]), "--segment-scores", f"COMET={scores}"]
        )


def test_segment_scores_of_every_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, scores = write(tmp_path / "a.txt", SIX), write(tmp_path / "a.comet", [0.5] * 6)
    command = ["compare", "--ref", str(text), "--sys", str(text), str(write(tmp_path / "b.txt", SIX))]
    with pytest.raises(UserError, match="--segment-scores: 1 files for COMET, but --sys has 2 systems"):
        analysis.main([*command, "--segment-scores", f"COMET={scores}"])
    for value, message in (
        (f"system={scores}", "has a column system"),
        ("comet", "not of the form METRIC=FILE"),
        (f"BLEU={scores}", "has a column BLEU"),
    ):
        with pytest.raises(SystemExit):
            analysis.main([*command, "--segment-scores", value])
        assert message in capsys.readouterr().err

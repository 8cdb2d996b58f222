"""Contrastive scoring: accuracies worked out by hand, the forms of the test sets, scores that are those of the same
sentences in binarized data, and every mistake in a file named."""

from __future__ import annotations

import codecs
import csv
import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Sequence

import numpy as np
import pytest

import make_corpus
import probe
from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis.contrastive import accuracies, accuracy_figure, is_right, read_examples
from fairseq_ctxgates.analysis.contrastive_scores import text_encoder
from fairseq_ctxgates.analysis.contrastive_sets import Example, read_json, read_parallel, read_test_set
from fairseq_ctxgates.analysis.inference import Inference
from fairseq_ctxgates.analysis.scores import token_log_probs
from fairseq_ctxgates.commands.preceding_sentences import main as preceding_sentences
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize
from tests.helpers.documents import TEXT
from tests.helpers.fairseq_commands import SMOOTHED, USER_DIR, run
from tests.helpers.outputs import output_files
from tests.helpers.trained import Trained

# --- accuracy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "right"), [([-1, -2, -3], True), ([-2, -1, -3], False), ([-1, -1], False), ([-1, -2, -0.5], False)]
)
def test_right_is_higher_than_every_wrong_one(scores: List[float], right: bool) -> None:
    assert is_right(np.array(scores)) is right


def example(wrong: int = 1, **groups: str) -> Example:
    return Example("somewhere", "s", [], ["t", *["u"] * wrong], groups=groups)


EXAMPLES = [example(distance="1"), example(wrong=3, distance="0"), example(distance="1", kind="x"), example()]


def test_accuracies_by_hand() -> None:
    found = accuracies(EXAMPLES, [[True, False, False, True], [True, True, True, True]])
    assert [(group.name, group.examples, group.chance) for group in found] == [
        ("all", 4, (0.5 + 0.25 + 0.5 + 0.5) / 4),
        ("distance 0", 1, 0.25),
        ("distance 1", 2, 0.5),
        ("kind x", 1, 0.5),
    ]
    assert [group.accuracies[0].value for group in found] == [0.5, 0.0, 0.5, 0.0]
    assert {group.accuracies[1].value for group in found} == {1.0}
    overall = found[0].accuracies[0]
    assert overall.low == 0.0 and overall.high == 1.0  # of four examples, resampled


def test_figure_shows_the_accuracies_and_nothing_overlaps() -> None:
    examples = [example(pronoun=f"it:pronoun{number}") for number in range(12)]
    groups = accuracies(examples, [[True] * 12, [False] * 12])
    figure: Any = accuracy_figure(groups, ["isg", "plain"])
    figure.canvas.draw()
    (axes,) = figure.axes
    labels = axes.get_xticklabels()
    assert [label.get_text() for label in labels][:2] == ["all (12)", "pronoun it:pronoun0 (1)"]
    series = [bars for bars in axes.containers if hasattr(bars, "patches")]
    assert [[bar.get_height() for bar in bars] for bars in series] == [[1.0] * 13, [0.0] * 13]
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"isg", "plain", "guessing"}
    places = [axes.transData.transform((place, 0))[0] for place in axes.get_xticks()]
    height = labels[0].get_size() / 72 * figure.dpi  # labels at an angle of 45 degrees
    assert min(right - left for left, right in zip(places, places[1:])) > height


# --- test sets --------------------------------------------------------------------------------------------------------


def write(path: Path, content: Any) -> Path:
    """A JSON file, or the lines of a text file."""
    is_text = isinstance(content, list) and all(isinstance(line, str) for line in content)
    text = "".join(f"{line}\n" for line in content) if is_text else json.dumps(content, indent=1)
    path.write_text(text, encoding="utf-8")
    return path


ANAPHORA = {
    "1": {
        "src": ["The house is old.", "I like it."],
        "trg": [
            {"correct": ["La maison.", "Je l'aime."], "incorrect": ["La maison.", "Je le aime."], "type": "f.sg"},
            {"semi-correct": ["Le manoir.", "Je le aime."], "incorrect": ["Le manoir.", "Je l'aime."]},
        ],
    }
}
LEXICAL_CHOICE = {
    "7": {
        "type": "disambig",
        "examples": [
            {"src": ["New suspects?", "A match!"], "trg": {"correct": ["", "Un 1 !"], "incorrect": ["", "Un 2 !"]}},
            {"src": ["My lighter.", "A match!"], "trg": {"correct": ["", "Un 2 !"], "incorrect": ["", "Un 1 !"]}},
        ],
    }
}


def test_discourse_test_sets(tmp_path: Path) -> None:
    first, second = read_test_set(write(tmp_path / "anaphora.json", ANAPHORA), ["en", "fr"])
    assert (first.preceding, first.source) == (["The house is old."], "I like it.")
    assert (first.translations, first.groups) == (
        ["Je l'aime.", "Je le aime."],
        {"translation": "correct", "type": "f.sg"},
    )
    assert (second.translations, second.groups) == (["Je le aime.", "Je l'aime."], {"translation": "semi-correct"})
    first, second = read_test_set(write(tmp_path / "lexical-choice.json", LEXICAL_CHOICE), ["en", "fr"])
    assert (first.preceding, second.preceding) == (["New suspects?"], ["My lighter."])
    assert (first.translations, second.translations) == (["Un 1 !", "Un 2 !"], ["Un 2 !", "Un 1 !"])
    assert first.groups == {"translation": "correct", "type": "disambig"}


def entry(segment: int, source: str, *translations: str, distance: Any = 1, **others: Any) -> Dict[str, Any]:
    """An entry of contrapro.json, with what is read of it and some of the rest."""
    return {
        "document id": "6_58_1.de",
        "segment id": segment,
        "src segment": source,
        "ref segment": translations[0],
        "errors": [{"contrastive": wrong, "type": "pronominal coreference"} for wrong in translations[1:]],
        "src pronoun": "it",
        "ref pronoun": "Er",
        "ante distance": distance,
        "intrasegmental": None,
        **others,
    }


CONTRAPRO = [
    entry(3, "I see it .", "Ich sehe ihn .", "Ich sehe sie .", "Ich sehe es ."),
    entry(1, "It rains .", "Es regnet .", "Sie regnet .", distance=7, intrasegmental=True),
]
SUBTITLES = ["It rains .", "A dog ?", "I see  it .", "Oh ."]


def test_an_entry_without_a_wrong_translation(tmp_path: Path) -> None:
    path = write(tmp_path / "contrapro.json", [*CONTRAPRO, entry(2, "It is .", "Er ist .")])
    context = write(tmp_path / "context", ["", "", ""])
    with pytest.raises(UserError, match=r"contrapro.json.*3 has no wrong translation to choose from"):
        read_test_set(path, ["en", "de"], [context])


def test_contrapro_is_read_with_its_context_given_in_any_way(tmp_path: Path) -> None:
    path = write(tmp_path / "contrapro.json", CONTRAPRO)
    (tmp_path / "documents" / "1996").mkdir(parents=True)
    write(tmp_path / "documents" / "1996" / "6_58_1.en", SUBTITLES)
    by_example = write(tmp_path / "by-example", ["A dog ?", ""])
    by_translation = write(tmp_path / "contrapro.context.en", ["A dog ?"] * 3 + [""] * 2)
    found = [
        read_test_set(path, ["en", "de"], preceding, documents=documents)
        for preceding, documents in (([by_example], None), ([by_translation], None), ([], tmp_path / "documents"))
    ]
    assert found[0] == found[1] == found[2]
    further = write(tmp_path / "further", ["It rains .", ""])
    several = [
        read_test_set(path, ["en", "de"], [by_example, further]),
        read_test_set(path, ["en", "de"], documents=tmp_path / "documents", context_size=2),
        read_test_set(path, ["en", "de"], documents=tmp_path / "documents", context_size=3),
    ]
    for examples in several:
        assert [example.preceding for example in examples] == [["It rains .", "A dog ?"], []]
    first, second = found[0]
    assert (first.source, first.preceding) == ("I see it .", ["A dog ?"])
    assert first.translations == ["Ich sehe ihn .", "Ich sehe sie .", "Ich sehe es ."]
    assert first.groups == {"pronoun": "it:er", "distance": "1"}
    assert (second.preceding, second.groups["distance"], second.groups["intrasegmental"]) == ([], ">3", "true")
    assert second.where.endswith("contrapro.json: entry 2")


@pytest.mark.parametrize(("distance", "group"), [(0, "0"), (3, "3"), (4, ">3"), (None, None)])
def test_groups_of_contrapro(tmp_path: Path, distance: Any, group: Any) -> None:
    """One for each distance, from 0, up to 3."""
    example = entry(1, "It rains .", "Es regnet .", "Sie regnet .", distance=distance, intrasegmental=False)
    context = write(tmp_path / "context", [""])
    (found,) = read_test_set(write(tmp_path / "contrapro.json", [example]), ["en", "de"], [context])
    assert (found.groups.get("distance"), found.groups["intrasegmental"]) == (group, "false")


@pytest.mark.parametrize(("size", "preceding"), [(1, ["A dog ?"]), (2, ["It rains .", "A dog ?"])])
def test_documents_give_as_many_sentences_as_the_model_reads(tmp_path: Path, size: int, preceding: List[str]) -> None:
    (tmp_path / "documents" / "1996").mkdir(parents=True)
    write(tmp_path / "documents" / "1996" / "6_58_1.en", SUBTITLES)
    path = write(tmp_path / "contrapro.json", CONTRAPRO)
    args = Namespace(test_set=path, documents=tmp_path / "documents", preceding=None, preceding_target=None)
    model: Any = SimpleNamespace(languages=("en", "de"), context_size=size)
    assert [example.preceding for example in read_examples(args, model)] == [preceding, []]


def test_translations_of_the_preceding_sentences(tmp_path: Path) -> None:
    """Each form of test set has them, or a file gives them."""
    (first, _) = read_test_set(write(tmp_path / "anaphora.json", ANAPHORA), ["en", "fr"])
    assert first.preceding_targets == [["La maison."], ["La maison."]]
    path = write(tmp_path / "contrapro.json", CONTRAPRO)
    year = tmp_path / "documents" / "1996"
    year.mkdir(parents=True)
    write(year / "6_58_1.en", SUBTITLES)
    assert read_test_set(path, ["en", "de"], documents=year.parent)[0].preceding_targets is None
    write(year / "6_58_1.de", ["Es regnet .", "Ein Hund ?", "Ich sehe ihn .", "Oh ."])
    before = write(tmp_path / "before.en", ["A dog ?", ""]), write(tmp_path / "before.de", ["Ein Hund ?", ""])
    for found in (
        read_test_set(path, ["en", "de"], documents=year.parent),
        read_test_set(path, ["en", "de"], before[:1], before[1:]),
    ):
        assert [example.preceding_targets for example in found] == [[["Ein Hund ?"]] * 3, [[], []]]
    (first, second) = read_test_set(path, ["en", "de"], documents=year.parent, context_size=2)
    assert first.preceding_targets == [["Es regnet .", "Ein Hund ?"]] * 3
    write(year / "6_58_1.en", [SUBTITLES[0], "", *SUBTITLES[2:]])  # as in training an empty line ends a document
    (first, second) = read_test_set(path, ["en", "de"], documents=year.parent, context_size=2)
    assert (first.preceding, first.preceding_targets) == ([], [[]] * 3)
    write(year / "6_58_1.en", SUBTITLES)
    write(year / "6_58_1.de", ["Es regnet .", "Ein Hund ?", "Ich sehe sie ."])
    (first, second) = read_test_set(path, ["en", "de"], documents=year.parent)
    assert (first.preceding_targets, second.preceding_targets) == (None, [[], []])
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(UserError, match="empty.json holds no examples"):
        read_test_set(tmp_path / "empty.json", ["en", "de"], documents=year.parent)
    source, reference = write(tmp_path / "src", ["s1", "s2"]), write(tmp_path / "ref", ["t1", "t2"])
    wrong = write(tmp_path / "wrong", ["u1", "u2"])
    found = read_parallel(source, reference, [wrong], before[:1], before[1:])
    assert [example.preceding_targets for example in found] == [[["Ein Hund ?"]] * 2, [[], []]]


@pytest.mark.parametrize(("language", "tokens"), [("fr", "l' eau"), ("en", "l 'eau")])
def test_the_tokenizer_is_that_of_the_language(language: str, tokens: str) -> None:
    languages = {"source_lang": None, "target_lang": None}
    options = Namespace(tokenizer="moses", bpe=None, moses_no_dash_splits=False, moses_no_escape=True, **languages)
    assert text_encoder(options, language)("l'eau") == tokens


def test_a_test_set_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_bytes(codecs.BOM_UTF8 + b"[]")
    assert read_json(tmp_path / "set.json") == []


def test_an_example_is_a_line_of_each_plain_file_and_an_empty_line_is_none(tmp_path: Path) -> None:
    source, reference = write(tmp_path / "src", ["s1", "s2"]), write(tmp_path / "ref", ["t1", "t2"])
    wrong = [write(tmp_path / "wrong1", ["u1", "u2"]), write(tmp_path / "wrong2", ["", "v2"])]
    before = [write(tmp_path / "before", ["", "p2"]), write(tmp_path / "further", ["", "q2"])]
    first, second = read_parallel(source, reference, wrong, before)
    assert (first.source, first.preceding, first.translations) == ("s1", [], ["t1", "u1"])
    assert (second.source, second.preceding, second.translations) == ("s2", ["q2", "p2"], ["t2", "u2", "v2"])
    assert [found.preceding for found in read_parallel(source, reference, wrong)] == [[], []]
    with pytest.raises(
        UserError, match="before has no sentence for example 1, and a later file has: name the file of the n"
    ):
        read_parallel(source, reference, wrong, [before[0], write(tmp_path / "all", ["r1", "r2"])])
    # Holes whatever the order: an empty line ends a document.
    holes = write(tmp_path / "holes", ["", "p2"]), write(tmp_path / "others", ["r1", ""])
    assert [found.preceding for found in read_parallel(source, reference, wrong, holes)] == [[], ["p2"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"1": {\n"src": ["a", "b"],\n"trg" []}}', "test.json: line 3 is not JSON"),
        ("", "test.json: line 1 is not JSON"),
        ("[]", "test.json holds no examples"),
        ("7", "test.json is neither ContraPro's list nor the object"),
        (json.dumps({"5": {"src": ["a", "b"]}}), "test.json: example 5 has no 'trg'"),
        (
            json.dumps({"5": {"src": ["a"], "trg": ANAPHORA["1"]["trg"]}}),
            "test.json: example 5 does not have the expected",
        ),
        (json.dumps({"5": ["src"]}), "test.json: example 5 does not have the expected"),
        (json.dumps([CONTRAPRO[0], {"src segment": "a"}]), "test.json: entry 2 has no 'ref segment'"),
        (
            json.dumps([{**CONTRAPRO[0], "src segment": 7}]),
            "test.json: entry 1 does not have the expected .*7 where a sentence",
        ),
        (json.dumps([3]), "test.json: entry 1 does not have the expected"),
        (b"\n\xff", "test.json: line 2 is not UTF-8"),
        (None, "test.json cannot be read: No such file"),
    ],
)
def test_damaged_json(tmp_path: Path, content: Any, message: str) -> None:
    path, before = tmp_path / "test.json", None
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if content and content[0] == "[":
            before = write(tmp_path / "before", ["x"] * len(json.loads(content)))
    with pytest.raises(UserError, match=message):
        read_test_set(path, ["en", "de"], [before] if before else [])


def test_what_contrapro_needs(tmp_path: Path) -> None:
    path = write(tmp_path / "contrapro.json", CONTRAPRO)

    def refused(message: str, preceding: Any = None, documents: Any = None, json_file: Path = path) -> None:
        with pytest.raises(UserError, match=message):
            read_test_set(json_file, ["en", "de"], [preceding] if preceding else [], documents=documents)

    refused("does not have the preceding sentences: give --documents, .*, or --preceding")
    refused(r"before has 3 lines for 2 examples of 5 translations", preceding=write(tmp_path / "before", ["a"] * 3))
    refused("--documents .*: there is no .*.en in it", documents=tmp_path)
    folder = tmp_path / "documents" / "1996"
    folder.mkdir(parents=True)
    write(folder / "other.en", SUBTITLES)
    refused("entry 1: .*6_58_1.en not found", documents=folder.parent)
    write(folder / "6_58_1.en", SUBTITLES[1:])
    refused("entry 1: line 3 of .*6_58_1.en is not its source sentence", documents=folder.parent)
    write(folder / "6_58_1.en", SUBTITLES[:1])
    refused("entry 1: line 3 of .* is not its source sentence", documents=folder.parent)
    discourse = write(tmp_path / "anaphora.json", ANAPHORA)
    refused("has its preceding sentences: leave --preceding", preceding=path, json_file=discourse)


# --- models -----------------------------------------------------------------------------------------------------------


MODELS = ("isg", "rnnsearch", "plain", "concatenated", "stock")


@pytest.fixture(scope="session")
def trained(trained_on_documents: Trained) -> Trained:
    return trained_on_documents


def write_parallel(folder: Path) -> List[str]:
    """The options that name the test split as plain text, with two wrong translations of each sentence."""
    documents = TEXT["test"]
    pairs = [pair for document in documents for pair in document]
    files = {
        "source": [source for source, _ in pairs],
        "preceding": [source for document in documents for source in ["", *(pair[0] for pair in document[:-1])]],
        "reference": [target for _, target in pairs],
    }
    wrong = [[f"{target} z3" for _, target in pairs], [f"z5 {target}" for _, target in pairs]]
    options = [text for name, lines in files.items() for text in (f"--{name}", str(write(folder / name, lines)))]
    contrastive = [str(write(folder / f"wrong{number}", lines)) for number, lines in enumerate(wrong)]
    return [*options, "--contrastive", *contrastive]


def contrastive(trained: Trained, models: Sequence[str], *options: Any) -> None:
    paths = [trained[model] for model in models]
    arguments = ["contrastive", trained.data, "--path", *paths, "--cpu", *options]
    analysis.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("size", [("--batch-size", 7), ("--max-tokens", 30), ()])
def test_scores_are_those_of_the_binarized_split(trained: Trained, tmp_path: Path, size: Any) -> None:
    """There the preceding sentences come from the stream, here from the lines."""
    table = tmp_path / "scores.csv"
    contrastive(trained, MODELS, *write_parallel(tmp_path), "--csv", table, *size)
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 20
    for model in MODELS:
        inference = Inference(str(trained[model]), str(trained.data), cpu=True)
        expected: Dict[int, float] = {}
        for batch in inference.batches("test"):
            expected.update(zip(batch["id"].tolist(), (row.sum() for row in token_log_probs(inference, batch))))
        for number, row in enumerate(rows):
            assert float(row[f"{model}: right translation"]) == pytest.approx(expected[number], abs=1e-4)
    assert rows[3]["example"].endswith("source: line 4")


def test_accuracy_is_the_share_of_right_translations_that_score_best(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = output_files(tmp_path / "new", "accuracy")
    options = [f"--{name}={path}" for name, path in files.items()]
    contrastive(trained, ("isg", "plain"), *write_parallel(tmp_path), *options, "--names", "with", "without")
    report = json.loads(files["json"].read_text(encoding="utf-8"))
    rows = list(csv.DictReader(files["csv"].read_text(encoding="utf-8").splitlines()))
    (overall,) = report["groups"]
    assert (overall["number"], overall["chance"], report["score"]) == (20, pytest.approx(1 / 3), "sum")
    for name in ("with", "without"):
        right = [float(row[f"{name}: right translation"]) > float(row[f"{name}: best wrong one"]) for row in rows]
        assert overall["systems"][name]["accuracy"] == sum(right) / 20
    assert files["figure"].read_bytes().startswith(b"\x89PNG")
    assert "score: sum of the tokens' log-probabilities" in capsys.readouterr().out


def test_translations_of_unknown_words_are_counted(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the model, his and her are the same; z1 and z2 are not."""
    pairs = {"source": ["q1", "q2"], "reference": ["z1 his", "z1 her"], "contrastive": ["z1 her", "z2 her"]}
    options = [text for name, lines in pairs.items() for text in (f"--{name}", write(tmp_path / name, lines))]
    contrastive(trained, ["plain"], *options, "--names", "plain", "--json", tmp_path / "x.json")
    printed = capsys.readouterr().out
    assert "plain: in 1 of 2 examples, which count as wrong, a wrong translation has the" in printed
    # Of the 12 tokens of the translations, of which 4 are the ends of the sentences.
    assert "plain: 0.00% of the source tokens and 33.33% of the target tokens are unknown (see --tokenizer" in printed
    report = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert report["ambiguous"] == {"plain": 1}
    assert report["unknown"] == {"plain": {"source": 0.0, "target": pytest.approx(4 / 12)}}


def test_what_is_the_same_to_the_model_has_one_score(trained: Trained, tmp_path: Path) -> None:
    """Also where the two translations are in batches of other sizes, which round in other ways."""
    sources = [" ".join(["q1", "q2", "q3"][: 1 + number % 3]) for number in range(13)]
    sides = {"source": sources, "reference": ["z1 his"] * 13, "contrastive": ["z1 her"] * 13}
    options = [text for name, lines in sides.items() for text in (f"--{name}", write(tmp_path / name, lines))]
    for size in (3, 5, 7):
        table = tmp_path / f"{size}.csv"
        contrastive(trained, ["plain"], *options, "--names", "plain", "--csv", table, "--batch-size", size)
        rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
        assert [row["plain: right translation"] == row["plain: best wrong one"] for row in rows] == [True] * 13


def test_a_context_model_without_context_is_named(
    trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = {"source": ["q1", "q2"], "reference": ["z1", "z2"], "contrastive": ["z2", "z1"], "preceding": ["", "q1"]}
    options = [text for name, lines in pairs.items() for text in (f"--{name}", write(tmp_path / name, lines))]
    for given, warned in ((options, []), (options[:-2], ["isg"])):
        caplog.clear()
        contrastive(trained, ["isg", "plain"], *given, "--names", "isg", "plain")
        messages = [record.getMessage() for record in caplog.records if "no example has any" in record.getMessage()]
        assert [message.split(" reads preceding")[0] for message in messages] == [
            str(trained[model]) for model in warned
        ]


def test_normalized_scores_are_means(trained: Trained, tmp_path: Path) -> None:
    tables = [tmp_path / "sum.csv", tmp_path / "mean.csv"]
    for table, options in zip(tables, ((), ("--normalize",))):
        contrastive(trained, ["isg"], *write_parallel(tmp_path), "--names", "isg", "--csv", table, *options)
    sums, means = (
        [float(row["isg: right translation"]) for row in csv.DictReader(table.open(encoding="utf-8"))]
        for table in tables
    )
    lengths = [len(target.split()) + 1 for document in TEXT["test"] for _, target in document]
    assert means == pytest.approx([total / length for total, length in zip(sums, lengths)], abs=1e-5)


def test_minimal_pairs_are_a_coin_for_a_model_without_context(trained: Trained, tmp_path: Path) -> None:
    """The same two translations after two preceding sentences, each right once."""
    path = write(
        tmp_path / "pairs.json",
        {
            str(number): {
                "type": "disambig",
                "examples": [
                    {"src": [before, f"q{number} q1"], "trg": {"correct": ["", right], "incorrect": ["", wrong]}}
                    for before, right, wrong in (("q2", "z1", "z2"), ("q5 q6", "z2", "z1"))
                ],
            }
            for number in range(6)
        },
    )
    report = tmp_path / "x.json"
    contrastive(trained, ["plain", "stock"], "--test-set", path, "--json", report)
    groups = json.loads(report.read_text(encoding="utf-8"))["groups"]
    assert [group["examples"] for group in groups] == ["all", "translation correct", "type disambig"]
    for group in groups:
        assert {system["accuracy"] for system in group["systems"].values()} == {0.5}


def test_text_goes_through_tokenizer_and_subwords(tmp_path: Path) -> None:
    codes = write(tmp_path / "codes", ["#version: 0.2", "q 1</w>"])
    options = Namespace(tokenizer="space", bpe="subword_nmt", bpe_codes=str(codes), bpe_separator="@@")
    assert text_encoder(options, "de")("q1   q2") == "q1 q@@ 2"
    assert text_encoder(Namespace(tokenizer=None, bpe=None), "de")("q1 q2") == "q1 q2"


def test_options_of_the_subwords(trained: Trained, tmp_path: Path) -> None:
    """With codes that make words whole again, the scores are those without."""
    merges = [f"{letter} {digit}{end}" for letter in "qz" for digit in range(10) for end in ("", "</w>")]
    merges += [f"{letter}1 {digit}</w>" for letter in "qz" for digit in range(10)]
    codes = write(tmp_path / "codes", ["#version: 0.2", *merges])
    scores = []
    for name, options in (("without", ()), ("with", ("--bpe", "subword_nmt", "--bpe-codes", codes))):
        table = tmp_path / f"{name}.csv"
        contrastive(trained, ["isg"], *write_parallel(tmp_path), "--csv", table, *options)
        scores.append(table.read_text(encoding="utf-8"))
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bpe", "subword_nmt", "--bpe-codes", "missing.codes"], "--bpe subword_nmt: .*missing.codes"),
        (["--bpe", "subword_nmt"], "--bpe subword_nmt needs --bpe-codes"),
        (["--contrastive", "missing"], "missing not found"),
        (["--names", "a", "b"], "--names has 2 names for 1 systems"),
    ],
)
def test_options_that_do_not_fit(trained: Trained, tmp_path: Path, options: List[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        contrastive(trained, ["isg"], *write_parallel(tmp_path), *options)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("reference", ["z1"] * 19, "reference has 19 sentences, .*source has 20"),
        ("preceding", ["q1"] * 21, "preceding has 21 sentences, .*source has 20"),
        ("reference", ["z1"] * 5 + [""] + ["z2"] * 14, "reference: line 6 is empty"),
        ("source", ["q1 " * 1100] * 20, "source: line 1: a source of 1101 tokens, .*checkpoint_last.pt reads 1024"),
        ("wrong1", ["z1 " * 1100] * 20, "source: line 1: a translation of 1101 tokens"),
        ("source", [], "source is empty"),
    ],
)
def test_files_that_do_not_fit(trained: Trained, tmp_path: Path, name: str, lines: List[str], message: str) -> None:
    options = write_parallel(tmp_path)
    write(tmp_path / name, lines)
    with pytest.raises(UserError, match=message):
        contrastive(trained, ["plain"], *options)


def test_neither_test_set_nor_plain_text(trained: Trained) -> None:
    with pytest.raises(UserError, match=r"give --test-set, or plain text: .* \(--source is missing\)"):
        contrastive(trained, ["plain"])


# --- the quick start --------------------------------------------------------------------------------------------------

SIZE = (
    *("--encoder-layers", 1, "--decoder-layers", 1, "--encoder-embed-dim", 64, "--decoder-embed-dim", 64),
    *("--encoder-ffn-embed-dim", 128, "--decoder-ffn-embed-dim", 128),
    *("--encoder-attention-heads", 4, "--decoder-attention-heads", 4, "--share-decoder-input-output-embed"),
)
TRAINING = (
    *("--dropout", 0, "--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "6e-3", *SMOOTHED),
    *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", 100, "--batch-size", 48, "--seed", 1, "--cpu"),
    *("--num-workers", 0, "--disable-validation", "--no-epoch-checkpoints", "--max-update", 480),
)


@pytest.mark.slow
def test_it_agrees_with_the_quick_starts_probe(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    make_corpus.main([str(corpus)])
    files = {"train": "train", "valid": "valid", "test": "probe-preceding"}
    texts = {
        name: [(corpus / f"{file}.{extension}").read_text(encoding="utf-8").splitlines() for extension in ("en", "de")]
        for name, file in files.items()
    }
    data = binarize(tmp_path / "data", {name: list(zip(*sides)) for name, sides in texts.items()}, "en", "de")
    documents = [f"{name}={corpus / file}.docids" for name, file in files.items()]
    preceding_sentences([str(data), "-s", "en", "-t", "de", "--documents", *documents])
    task = ("--user-dir", USER_DIR, "--task", "context_translation", "-s", "en", "-t", "de")
    model = ("--arch", "isg_transformer", "--load-preceding-sentences")
    run("train", data, *task, *model, *SIZE, *TRAINING, "--save-dir", tmp_path)
    checkpoint = tmp_path / "checkpoint_last.pt"

    probed = corpus / "probe-preceding.probed.tsv"
    options: Dict[str, List[str]] = {"source": [], "preceding": [], "reference": [], "contrastive": []}
    source, target = texts["test"]
    for row in csv.DictReader(probed.open(encoding="utf-8"), delimiter="\t"):
        line, words = int(row["line"]) - 1, target[int(row["line"]) - 1].split()
        words[int(row["position"]) - 1] = row["rival"]
        for name, text in zip(options, (source[line], source[line - 1], target[line], " ".join(words))):
            options[name].append(text)
    given = [text for name, lines in options.items() for text in (f"--{name}", str(write(tmp_path / name, lines)))]
    report = tmp_path / "x.json"
    analysis.main(
        ["contrastive", str(data), "--path", str(checkpoint), "--cpu", *given, "--json", str(report), "--names=x"]
    )
    (overall,) = json.loads(report.read_text(encoding="utf-8"))["groups"]
    right, number = probe.score_probe(Inference(str(checkpoint), str(data), cpu=True), "test", probed)
    assert overall["number"] == number == 240
    assert overall["systems"]["x"]["accuracy"] == pytest.approx(right / number, abs=0.02)
    assert right / number > 0.9

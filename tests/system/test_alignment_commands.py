"""Alignments through fairseq's commands: the ``_align`` architectures learn them, --print-alignment prints them, and
--replace-unk reads them."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import pytest

from fairseq_ctxgates import analysis
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.mask import pack_tuples
from tests.helpers.documents import write_preceding
from tests.helpers.fairseq_commands import (
    DECODING,
    TASK,
    check_training_is_refused,
    hypotheses,
    logged,
    printed_alignments,
    run,
    write_relations,
)
from tests.helpers.trained import Trained, train_models

SIZES = {"train": 400, "valid": 10, "test": 30}
ALIGNED = (
    *("--load-alignments", "--criterion", "label_smoothed_cross_entropy_with_alignment", "--label-smoothing", "0.1"),
    *("--alignment-lambda", "1", "--dropout", "0", "--lr", "0.003", "--batch-size", "20", "--no-epoch-checkpoints"),
    *("--encoder-layers", "1"),
)
GATED_ALIGN = ("--arch", "context_transformer_align_tiny", "--context-gate", "interpolate", *ALIGNED)
ALL = (
    *("--arch", "isg_transformer_align_tiny", "--context-gate", "interpolate", "--relation-fusion", "gate"),
    *("--smoothing", "fcwm", "--full-context-alignment", *ALIGNED),
)
Pairs = List[Tuple[int, int]]  # a source and a target word each


class Line(NamedTuple):
    """A sentence pair, with the source word of each target word."""

    source: str
    target: str
    alignment: Pairs


def make_lines(number: int, seed: int) -> List[Line]:
    """Sentences of two to four words, translated word by word in reverse order. A fifth of the words are names, each of
    which occurs once, so that no dictionary has them; the translation has the same name."""
    rng = random.Random(seed)
    lines = []
    for row in range(number):
        words = [
            (f"name{seed}.{row}.{place}",) * 2 if rng.random() < 0.2 else (f"q{word}", f"z{word}")
            for place, word in enumerate(rng.choices(range(6), k=rng.randint(2, 4)))
        ]
        alignment = [(len(words) - 1 - target, target) for target in range(len(words))]
        source, target = (" ".join(word[side] for word in words[::step]) for side, step in ((0, 1), (1, -1)))
        lines.append(Line(source, target, alignment))
    return lines


TEXT = {split: make_lines(number, seed) for seed, (split, number) in enumerate(SIZES.items())}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model with context gates and one with all mechanisms, which aligns in full context, both trained on alignments.
    fairseq-preprocess made the data."""
    folder = tmp_path_factory.mktemp("aligned")
    for split, lines in TEXT.items():
        texts = {
            "de": [line.source for line in lines],
            "en": [line.target for line in lines],
            "align": [" ".join(f"{source}-{target}" for source, target in line.alignment) for line in lines],
        }
        for suffix, column in texts.items():
            (folder / f"{split}.{suffix}").write_text("".join(f"{text}\n" for text in column))
    options = [f"--{split}pref={folder / split}" for split in SIZES]
    options += ["--source-lang", "de", "--target-lang", "en", "--thresholdsrc", "2", "--thresholdtgt", "2"]
    data = folder / "data"
    run("preprocess", *options, "--align-suffix", "align", "--destdir", data)
    add_streams(data)
    models = {"gated": GATED_ALIGN, "all": ALL}
    return train_models(data, folder, models, "--max-epoch", 25)


def add_streams(data: Path) -> None:
    """Preceding sentences, each split being one document, and relations, of which no sentence has any, as in
    fairseq-interactive without an extractor."""
    write_preceding(data, {split: [size] for split, size in SIZES.items()})
    for split, size in SIZES.items():
        write_relations(data, split, [pack_tuples([])] * size)


@pytest.fixture(scope="module")
def raw(trained: Trained) -> Path:
    """The test split as text, which --replace-unk needs."""
    data = trained.folder / "raw"
    data.mkdir()
    for split in SIZES:
        for lang in ("de", "en"):
            shutil.copy(trained.data / f"dict.{lang}.txt", data)
            shutil.copy(trained.folder / f"{split}.{lang}", data / f"{split}.de-en.{lang}")
    add_streams(data)
    return data


def translate(data: Path, checkpoint: Any, *options: Any) -> str:
    """What fairseq-generate prints for the test split."""
    return run("generate", data, *TASK, "--path", checkpoint, *DECODING, *options)


def replaced(output: str, source_of: Callable[[str], str] = str) -> Dict[int, str]:
    """The translations, each <unk> replaced by the source word of its printed alignment, or what is given for it."""
    found = {}
    for row, hypothesis in hypotheses(output).items():
        source, pairs = TEXT["test"][row].source.split(), printed_alignments(output)[row]
        words = zip(hypothesis.text.split(), pairs)
        found[row] = " ".join(source_of(source[pair[0]]) if word == "<unk>" else word for word, pair in words)
    return found


def texts(output: str) -> Dict[int, str]:
    return {row: hypothesis.text for row, hypothesis in hypotheses(output).items()}


# --- alignments that a model has learned


@pytest.mark.parametrize("model", ["gated", "all"])
def test_alignments_are_learned(trained: Trained, model: str) -> None:
    """Of translations and of references alike."""
    losses = [float(entry["train_alignment_loss"]) for entry in logged(trained.logs[model], "train")]
    assert losses[-1] < 0.5 * losses[0]
    for scoring in ((), ("--score-reference",)):
        found = printed_alignments(translate(trained.data, trained[model], "--print-alignment", *scoring))
        assert sum(found[row] == line.alignment for row, line in enumerate(TEXT["test"])) > 15


def test_interactive_prints_the_same_alignments(trained: Trained, tmp_path: Path) -> None:
    """Also of the model that is run once more over its translations, with the preceding sentences."""
    lines = tmp_path / "input"
    lines.write_text("".join(f"{line.source}\n" for line in TEXT["test"]))
    options = ("--path", trained["all"], "--input", lines, "--buffer-size", 8, *DECODING, "--print-alignment")
    found = run("interactive", trained.data, *TASK, *options)
    assert printed_alignments(found) == printed_alignments(translate(trained.data, trained["all"], "--print-alignment"))


# --- unknown words


@pytest.mark.parametrize("model", ["gated", "all"])
def test_unknown_words_are_replaced_by_their_source_words(trained: Trained, raw: Path, model: str) -> None:
    """The names that no dictionary has, most of them in their places. An empty file copies every word (without a value
    fairseq's --replace-unk reads a file "@@ ")."""
    empty = ("--dataset-impl", "raw", "--replace-unk", "/dev/null")
    expected = translate(trained.data, trained[model], "--print-alignment")
    assert sum(text.count("<unk>") for text in texts(expected).values()) > 10
    found = translate(raw, trained[model], *empty)
    assert texts(found) == replaced(expected)
    assert sum(texts(found)[row] == line.target for row, line in enumerate(TEXT["test"])) > 15
    assert texts(translate(raw, trained[model], *empty, "--print-alignment")) == texts(found)


def test_an_analysis_reads_text_as_it_reads_binarized_data(trained: Trained, raw: Path, tmp_path: Path) -> None:
    """Whatever the model was trained on."""
    found = []
    for data in (trained.data, raw):
        options = ["--gen-subset", "test", "--cpu", "--json", str(tmp_path / "gates.json")]
        analysis.main(["gates", str(data), "-s", "de", "-t", "en", "--path", str(trained["gated"]), *options])
        found.append(json.loads((tmp_path / "gates.json").read_text())["all"])
    assert found[0] == found[1]


def test_unknown_words_are_replaced_by_a_dictionary(trained: Trained, raw: Path, tmp_path: Path) -> None:
    names = [word for line in TEXT["test"] for word in line.source.split() if word.startswith("name")]
    entries = {name: name.upper() for name in names[::2]}
    path = tmp_path / "dictionary"
    path.write_text("".join(f"{name} {entry}\n" for name, entry in entries.items()))
    found = translate(raw, trained["gated"], "--dataset-impl", "raw", "--replace-unk", path)
    aligned = translate(trained.data, trained["gated"], "--print-alignment")
    assert texts(found) == replaced(aligned, lambda word: entries.get(word, word))
    assert any(entry in text for entry in entries.values() for text in texts(found).values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--remove-bpe",), "--replace-unk cannot be combined with --remove-bpe"),
        (("--score-reference",), "--replace-unk cannot be combined with --score-reference"),
        (("--print-alignment", "soft"), "--replace-unk cannot be combined with --print-alignment soft"),
    ],
)
def test_options_that_replacement_does_not_go_with(
    trained: Trained, raw: Path, options: Sequence[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        translate(raw, trained["gated"], "--dataset-impl", "raw", "--replace-unk", "/dev/null", *options)


def test_alignments_of_one_sentence_do_not_fit_two(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "--concatenate-preceding cannot be combined with --load-alignments"
    check_training_is_refused(
        trained.data, tmp_path, [*GATED_ALIGN, "--concatenate-preceding", "</s>"], message, capsys
    )

"""``ctxgates describe``: what is in a data directory, how it was made, and whether it fits."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, Dict, Optional

import pytest

import ctxgates
from fairseq_ctxgates.commands import preceding_sentences
from fairseq_ctxgates.commands.describe import main
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.version import __version__
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import make_pairs, write_relations

DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the streams and tables of every command. Not to be changed."""
    pairs = {"train": make_pairs(30, 1), "valid": make_pairs(6, 2)}
    data = binarize(tmp_path_factory.mktemp("made") / "data", pairs, "de", "en")
    ctxgates.main(["gate-labels", str(data), "-s", "de", "-t", "en", "--strategy", "mean"])
    names = data.parent / "names"
    names.write_text("a\n" * 30)
    ctxgates.main(["preceding-sentences", str(data), "-s", "de", "-t", "en", "--documents", f"train={names}"])
    write_relations(data, "train", [[0, -1]] * 30)
    return data


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def entries(data: Path, capsys: pytest.CaptureFixture[str], *options: str) -> Dict[str, Dict[str, Any]]:
    """What ``--json`` prints of each stream and table, by its file; the status says whether all of them fit."""
    capsys.readouterr()
    refusal: Optional[UserError] = None
    try:
        main([str(data), "--json", *options])
    except UserError as error:
        refusal = error
    (description,) = json.loads(capsys.readouterr().out)
    found = {entry["file"]: entry for entry in description["entries"]}
    assert (refusal is not None) == any(entry["problem"] for entry in found.values())
    return found


def test_every_stream_and_table(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = entries(data, capsys)
    assert set(found) == {
        *("train.gate.de-en.json", "valid.gate.de-en.json", "train.preceding.de-en.json", "train.relation.de-en.json"),
        *("pmi.bilingual.de-en.npz", "pmi.monolingual.de-en.npz"),
    }
    assert {entry["problem"] for entry in found.values()} == {None}
    assert {entry["version"] for entry in found.values()} == {__version__}
    labels, table = found["train.gate.de-en.json"], found["pmi.bilingual.de-en.npz"]
    options = {"counts": "marginal", "measure": "pmi", "min_count": 1, "strategy": "mean"}
    assert labels["options"] == table["options"] == options
    assert (labels["kind"], labels["split"], labels["size"]) == ("stream", "train", 30)
    assert (table["kind"], table["split"]) == ("table", None)
    assert table["size"] > 0
    assert set(labels["fingerprint"]) == {"source", "target"}
    assert set(table["fingerprint"]) == {"dictionaries", "train"}
    assert found["train.preceding.de-en.json"]["options"] == {"made_from": "--documents train=names"}
    assert re.fullmatch(DATE, labels["date"])


def test_what_people_read(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main([str(data)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(data)
    assert [line.split() for line in lines[1:3]] == [
        ["train", "de-en", "30", "sentences"],
        ["valid", "de-en", "6", "sentences"],
    ]
    (place,) = (number for number, line in enumerate(lines) if line.startswith("  train.gate.de-en.json "))
    assert lines[place].endswith(f"version {__version__}  fits")
    assert "strategy: mean" in lines[place + 1]


def test_other_data_other_files_and_incomplete_streams_do_not_fit(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(data / "dict.en.txt", data / "dict.de.txt")
    path = data / "valid.gate.de-en.json"
    path.unlink()
    (data / "train.mine.de-en.json").write_text('{"rows": 3}')
    found = entries(data, capsys)
    assert "other data or dictionaries" in found["train.gate.de-en.json"]["problem"]
    assert "other dictionaries" in found["pmi.bilingual.de-en.npz"]["problem"]
    assert (found[path.name]["version"], found[path.name]["date"]) == (None, None)
    assert "cannot be read" in found[path.name]["problem"]
    assert "--user-dir" in found["train.mine.de-en.json"]["problem"]
    assert found["train.mine.de-en.json"]["size"] == 3
    with pytest.raises(UserError, match=f"7 of the files in {data} cannot be used: "):
        main([str(data)])
    assert capsys.readouterr().out.count("DOES NOT FIT") == 7


def test_a_hostile_json_file(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "train.gate.de-en.json").write_text('{"rows": {}, "options": 3, "version": [], "made_from": 1}')
    assert "other data" in entries(data, capsys)["train.gate.de-en.json"]["problem"]
    with pytest.raises(UserError, match="train.gate.de-en.json"):
        main([str(data)])


def test_streams_of_both_directions_are_listed_unless_one_is_chosen(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Streams of both directions are found; -s and -t choose one."""
    ctxgates.main(["preceding-sentences", str(data), "-s", "en", "-t", "de", "--one-document"])
    both, one = entries(data, capsys), entries(data, capsys, "-s", "en", "-t", "de")
    assert {entry["languages"] for entry in both.values()} == {"de-en", "en-de"}
    assert set(one) == {"train.preceding.en-de.json", "valid.preceding.en-de.json"}


@pytest.mark.parametrize(("source", "target"), [("pt-br", "en"), ("en", "pt-br"), ("pt", "pt-br"), ("zh-cn", "zh-tw")])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_languages_with_a_hyphen(
    source: str, target: str, is_reversed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = binarize(tmp_path / "data", {"train": make_pairs(4, 1)}, source, target)
    if is_reversed:
        source, target = target, source
    pair = ["-s", source, "-t", target]
    ctxgates.main(["preceding-sentences", str(data), *(pair if is_reversed else ()), "--one-document"])
    for options in ((), pair):
        found = entries(data, capsys, *options)
        assert set(found) == {f"train.preceding.{source}-{target}.json"}
        assert found[f"train.preceding.{source}-{target}.json"]["problem"] is None


def test_data_of_several_language_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A language says which pair it is, first of all in the direction of the data."""
    data = tmp_path / "data"
    for pair in (("de", "fr"), ("en", "de"), ("en", "fr")):
        binarize(data, {"train": make_pairs(4, 1)}, *pair)
    for options, message in (
        ((), "several language pairs, de-fr, en-de, en-fr: give --source-lang and --target-lang"),
        (("-s", "en"), "several language pairs, en-de, en-fr: give"),
        (("-s", "it"), "holds data of de-fr, en-de, en-fr: check --source-lang"),
    ):
        with pytest.raises(UserError, match=message):
            preceding_sentences.main([str(data), *options, "--one-document"])
    assert entries(data, capsys) == {}
    for chosen, made in (("-s de", "de-fr"), ("-t de", "en-de"), ("-s fr -t en", "fr-en")):
        preceding_sentences.main([str(data), *chosen.split(), "--one-document"])
        assert set(entries(data, capsys)) == {f"train.preceding.{made}.json"}
        for path in data.glob("*.preceding.*"):
            path.unlink()


def test_tables_of_other_labels(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a command leaves that is killed between the labels and the tables."""
    tables = {path: path.read_bytes() for path in data.glob("pmi.*.npz")}
    ctxgates.main(["gate-labels", str(data), "-s", "de", "-t", "en", "--min-count", "2"])
    for path, content in tables.items():
        path.write_bytes(content)
    found = entries(data, capsys)
    assert found["train.gate.de-en.json"]["problem"] is None
    assert "are not those that " in found["pmi.bilingual.de-en.npz"]["problem"]
    assert "train.gate.de-en.json was made with" in found["pmi.bilingual.de-en.npz"]["problem"]


def test_labels_of_a_split_that_has_lost_its_target_do_not_count(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command makes no new ones for it."""
    for path in data.glob("valid.de-en.en.*"):
        path.unlink()
    ctxgates.main(["gate-labels", str(data), "-s", "de", "-t", "en", "--min-count", "2"])
    found = entries(data, capsys)
    assert found["valid.gate.de-en.json"]["problem"]
    assert [entry["problem"] for name, entry in found.items() if name != "valid.gate.de-en.json"] == [None] * 5


def test_several_data_directories(data: Path, tmp_path: Path) -> None:
    """They are trained on one after the other, so all need the same streams. Only the first has tables; those that the
    other has from an earlier run on it alone go with that run's labels."""
    other = Path(shutil.copytree(data, tmp_path / "other"))
    ctxgates.main(["gate-labels", f"{data}:{other}", "-s", "de", "-t", "en"])
    assert len(list(data.glob("pmi.*"))) == 2
    assert not list(other.glob("pmi.*"))
    main([f"{data}:{other}"])
    for path in other.glob("valid.gate.*"):  # training reads the first directory's
        path.unlink()
    main([f"{data}:{other}"])
    ctxgates.main(["gate-labels", str(other), "-s", "de", "-t", "en"])
    with pytest.raises(UserError, match=r"train.gate.de-en.json were not made in one run of the command"):
        main([f"{data}:{other}"])
    for path in other.glob("*.relation.*"):
        path.unlink()
    ctxgates.main(["gate-labels", f"{data}:{other}", "-s", "de", "-t", "en"])
    message = f"{other}/train.relation.de-en.idx not found; run: ctxgates relations {data}:{other} -s de -t en"
    with pytest.raises(UserError, match=re.escape(message)):
        main([f"{data}:{other}"])


def test_other_languages_are_left_alone(data: Path, tmp_path: Path) -> None:
    other = shutil.copytree(data, tmp_path / "other", ignore=shutil.ignore_patterns("pmi.*"))
    ctxgates.main(["gate-labels", f"{data}:{other}", "-s", "de", "-t", "en"])
    ctxgates.main(["preceding-sentences", str(data), "-s", "en", "-t", "de", "--one-document"])
    main([f"{data}:{other}", "-s", "de", "-t", "en"])
    with pytest.raises(UserError, match=r"other/train.preceding.en-de.idx not found"):
        main([f"{data}:{other}"])


def test_a_stream_of_languages_without_text_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = binarize(tmp_path / "plain", {"train": make_pairs(4, 1)}, "de", "en")
    ctxgates.main(["preceding-sentences", str(data), "-s", "de", "-t", "en", "--one-document"])
    (data / "train.preceding.de-fr.idx").touch()
    with pytest.raises(UserError, match=r"1 of the files in .* cannot be used: train\.preceding\.de-fr\.json"):
        main([str(data)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["train", "de-en", "4", "sentences"] in lines
    assert any(line[0] == "train.preceding.de-en.json" and line[-1] == "fits" for line in lines)


def test_without_streams_or_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = binarize(tmp_path / "plain", {"train": make_pairs(4, 1)}, "de", "en")
    main([str(data)])
    assert "no side streams and no tables" in capsys.readouterr().out
    with pytest.raises(UserError, match="not a directory"):
        main([str(tmp_path / "missing")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no data of any language pair"):
        main([str(tmp_path / "empty")])

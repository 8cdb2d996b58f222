"""The commands of the README and of the pages in docs/ run as they stand there, with a smaller model and fewer epochs;
links between pages lead somewhere, and docs/options.md is up to date."""

import re
from pathlib import Path
from typing import Set

import pytest

from fairseq_ctxgates.commands import gate_labels
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import DECODING, GATED, PLAIN, TASK, make_pairs, run, train
from tests.helpers.pages import DOCS, ROOT, run_block
from tests.helpers.trained import Trained
from tools import options_page
from warm_python import WarmPython

SPLITS = {
    name: make_pairs(number, seed) for seed, (name, number) in enumerate({"train": 30, "valid": 5, "test": 5}.items())
}
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "examples", "benchmarks") for page in (ROOT / folder).rglob("*.md")),
]


@pytest.mark.slow
def test_the_pipeline_of_the_readme_runs(tmp_path: Path, warm_commands: WarmPython) -> None:
    smaller = {
        "--arch rcg_transformer ": "--arch rcg_transformer_tiny ",
        "--max-epoch 30": "--max-epoch 2",
        "--num-epoch-checkpoints 5": "--num-epoch-checkpoints 2",
    }
    binarize(tmp_path / "data-bin" / "X", SPLITS, "de", "en", joined=True)
    output = run_block("pipeline", smaller, tmp_path, warm_commands)
    assert len(re.findall(r"^D-\d+", output, re.MULTILINE)) == 5
    assert "gate_agreement" in output
    assert (tmp_path / "checkpoints/rcg/average.pt").exists()
    assert (tmp_path / "gates.png").exists()


@pytest.mark.slow
def test_the_page_on_documents_runs_and_lines_are_translated_as_the_split(
    tmp_path: Path, warm_commands: WarmPython
) -> None:
    smaller = {"--arch isg_transformer ": "--arch isg_transformer_tiny ", "--max-epoch 30": "--max-epoch 2"}
    data = binarize(tmp_path / "data-bin" / "X", SPLITS, "de", "en", joined=True)
    for split, pairs in SPLITS.items():
        (tmp_path / f"{split}.docids").write_text("".join(f"document {row // 3}\n" for row in range(len(pairs))))
    (tmp_path / "test.de").write_text("".join(f"{source}\n" for source, _ in SPLITS["test"]))
    train(data, tmp_path / "checkpoints" / "transformer", *PLAIN, "--share-all-embeddings", "--max-epoch", 1)

    output = run_block("documents", smaller, tmp_path, warm_commands, DOCS / "documents.md")

    generated, typed = output.split("Sentence buffer size:")
    by_row = dict(re.findall(r"^H-(\d+)\t(.*)$", generated, re.MULTILINE))
    by_line = dict(re.findall(r"^H-(\d+)\t(.*)$", typed, re.MULTILINE))
    # The empty line between the two documents, of three sentences and of two, has number 3.
    lines = [by_line[number] for number in ("0", "1", "2", "4", "5")]
    for found, expected in zip(lines, (by_row[str(row)] for row in range(5))):
        assert found.split("\t")[1] == expected.split("\t")[1]
        assert float(found.split("\t")[0]) == pytest.approx(float(expected.split("\t")[0]), abs=1e-4)


@pytest.mark.slow
def test_the_page_on_relations_runs(tmp_path: Path, corenlp_url: str, warm_commands: WarmPython) -> None:
    smaller = {
        "--arch fra_transformer ": "--arch fra_transformer_tiny ",
        "--max-epoch 30": "--max-epoch 2",
        "--dump tuples.jsonl": f"--dump tuples.jsonl --corenlp-url {corenlp_url}",
    }
    sentences = ("the old farmer sells apples .", "a dog chases the cat .", "two children play in the park .")
    text = {split: [(sentences[row % 3], target) for row, (_, target) in enumerate(SPLITS[split])] for split in SPLITS}
    binarize(tmp_path / "data-bin" / "X", text, "en", "de", joined=True)
    (tmp_path / "test.en").write_text("".join(f"{source}\n" for source, _ in text["test"]))

    output = run_block("relations", smaller, tmp_path, warm_commands, DOCS / "relations.md")

    translations = re.findall(r"^D-(\d+)\t\S+\t(.*)$", output, re.MULTILINE)
    assert len(translations) == 10
    assert sorted(translations[:5]) == translations[5:]  # of fairseq-generate, of fairseq-interactive
    assert len((tmp_path / "tuples.jsonl").read_text().splitlines()) == sum(map(len, text.values()))


@pytest.mark.slow
def test_the_page_on_analyses_runs(tmp_path: Path, warm_commands: WarmPython) -> None:
    smaller = {"--arch rcg_transformer ": "--arch rcg_transformer_tiny --cpu ", "--max-epoch 30": "--max-epoch 1"}
    smaller["--values 0 0.5 1 2"] = "--values 0 1"
    data = binarize(tmp_path / "data-bin" / "X", SPLITS, "de", "en", joined=True)
    gate_labels.main([str(data), "-s", "de", "-t", "en"])
    (tmp_path / "test.en").write_text("".join(f"{target}\n" for _, target in SPLITS["test"]))
    for name, model in (("transformer", PLAIN), ("rcg", GATED)):
        folder = tmp_path / "checkpoints" / name
        train(data, folder, *model, "--share-all-embeddings", "--max-epoch", 1)
        (tmp_path / f"{name}.out").write_text(
            run("generate", data, *TASK, *DECODING, "--path", folder / "checkpoint_best.pt")
        )

    output = run_block("analyses", smaller, tmp_path, warm_commands, DOCS / "analyses.md")

    for name in ("errors", "lengths", "lambda"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert "CE/FE" in output
    assert (tmp_path / "sweeps" / "lambda").is_dir()


@pytest.mark.slow
def test_a_sentence_for_the_quick_start(
    trained_on_documents: Trained, tmp_path: Path, warm_commands: WarmPython
) -> None:
    folder = tmp_path / "quickstart-demo"
    (folder / "models" / "regularized-gates").mkdir(parents=True)
    (folder / "models" / "regularized-gates" / "checkpoint_last.pt").symlink_to(trained_on_documents["isg"])
    (folder / "data-bin").symlink_to(trained_on_documents.data)
    (folder / "bpe").mkdir()
    (folder / "bpe" / "codes").write_text("#version: 0.2\ns e</w>\n")
    output = run_block("sentence", {}, tmp_path, warm_commands, ROOT / "examples" / "quickstart" / "README.md")
    assert len(re.findall(r"^D-0\t", output, re.MULTILINE)) == 1


@pytest.mark.slow
def test_the_page_translates_ctxpro(trained_on_documents: Trained, tmp_path: Path, warm_commands: WarmPython) -> None:
    """Of the translations those of each example's last sentence are kept, in order."""
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "data-bin" / "X").symlink_to(trained_on_documents.data)
    (tmp_path / "checkpoints" / "isg").mkdir(parents=True)
    (tmp_path / "checkpoints" / "isg" / "checkpoint_best.pt").symlink_to(trained_on_documents["isg"])
    (tmp_path / "ctxpro.inputs").write_text("q1 q2<eos> q3<eos> q4 q5\nq6\nq7<eos> q8 q9 q10\n")
    run_block("ctxpro", {}, tmp_path, warm_commands, DOCS / "analyses.md")
    output = (tmp_path / "interactive.out").read_text(encoding="utf-8")
    found = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", output, re.MULTILINE))
    assert re.findall(r"^S-\d+\t(.*)$", output, re.MULTILINE)[:3] == ["q1 q2", "q3", "q4 q5"]
    last = (tmp_path / "last.en").read_text(encoding="utf-8").splitlines()
    assert last == [found["2"], found["4"], found["7"]]


def test_the_page_of_options_is_up_to_date() -> None:
    expected = options_page.page()
    found = (DOCS / "options.md").read_text(encoding="utf-8")
    assert found == expected, "run: python tools/options_page.py >docs/options.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Links between pages and to files: the file exists, and the heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target


def anchors(page: Path) -> Set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}

"""The commands on the pages of the four papers run from the top of the page to its end, on a tiny corpus and with tiny
models: what they write and name exists."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

import pytest

import ctxgates
from fairseq_ctxgates.analysis import sweep_runs
from fairseq_ctxgates.data.data_directory import Split, find_splits
from fairseq_ctxgates.relations.mask import pack_tuples
from tests.helpers.corpus import Pair, binarize
from tests.helpers.fairseq_commands import SMOOTHED, run, write_relations
from tests.helpers.pages import ROOT, page_commands, value_of

WIDTH = 16
# Five epochs of one update, because a page averages the checkpoints of five.
TRAINING = ("--cpu", "--num-workers", "0", "--max-update", "5", "--encoder-embed-dim", WIDTH)
SMALL = {
    "rnnsearch": ("--encoder-hidden-size", WIDTH),
    "transformer": (
        *("--decoder-embed-dim", WIDTH, "--encoder-ffn-embed-dim", WIDTH, "--decoder-ffn-embed-dim", WIDTH),
        *("--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
    ),
}
DECODING = ("--cpu", "--num-workers", "0", "--max-len-b", "10", "--batch-size", "8")
DOCUMENTS = 4  # in each split
SENTENCES = 6  # in each document
NIST = ("nist03", "nist04", "nist05", "nist06", "nist08")
SMOOTHING_KINDS = ("encoder", "decoder", "both", "all-replace")


def make_text(seed: int) -> List[Pair]:
    """Sentence pairs of few words, which word2vec sees often enough; some words are in one sentence only."""
    rng = random.Random(seed)
    pairs = []
    for number in range(DOCUMENTS * SENTENCES):
        words = [rng.randrange(8) for _ in range(rng.randint(2, 7))]
        rare = [f"{number}.{seed}"] if number % 3 == 0 else []
        pairs.append((" ".join([*(f"q{word}" for word in words), *rare]), " ".join(f"z{word}" for word in words)))
    return pairs


def write_text(folder: Path, name: str, languages: Tuple[str, str], pairs: Sequence[Pair]) -> None:
    """``name.SOURCE`` and ``name.TARGET``, and ``name.docids``."""
    for side, language in enumerate(languages):
        (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    documents = "".join(f"document {number // SENTENCES}\n" for number in range(len(pairs)))
    (folder / f"{name}.docids").write_text(documents)


def smaller(words: Sequence[str]) -> List[Any]:
    """A recorded command, so small that a test can wait for it."""
    program, *arguments = words
    if "--workers" in arguments:
        arguments[arguments.index("--workers") + 1] = "1"
    if "--values" in arguments:  # of a sweep: the first and the last
        start = arguments.index("--values") + 1
        end = next(place for place in range(start, len(arguments)) if arguments[place].startswith("--"))
        del arguments[start + 1 : end - 1]
    if program == "fairseq-train":
        backbone = "rnnsearch" if "rnnsearch" in value_of("--arch", arguments) else "transformer"
        without_gpu = [word for word in arguments if word != "--fp16"]
        return [program, *without_gpu, *TRAINING, *SMALL[backbone]]
    return [program, *arguments, *(DECODING if program == "fairseq-generate" else ())]


def run_command(words: Sequence[str], folder: Path) -> None:
    """Run a recorded command in this process."""
    program, *arguments = smaller(words)
    if words[:2] == ["ctxgates", "relations"]:  # which the tests of the command run
        add_relations(folder / words[2], (value_of("-s", words), value_of("-t", words)))
    elif program == "ctxgates":
        ctxgates.main(arguments)
    else:
        run(program.partition("-")[2], *arguments)


def add_relations(data: Path, languages: Tuple[str, str]) -> None:
    """One tuple for each sentence of each split."""
    for split in find_splits(data, *languages):
        rows = [pack_tuples([[0, 1]]) for _ in split.load_language(languages[0])]
        write_relations(data, split.name, rows, languages)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands run; a sweep's trainings run in this process too."""
    monkeypatch.chdir(tmp_path)

    def fairseq(command: Sequence[str], output: Path, _: Path) -> None:
        program, *arguments = smaller([f"fairseq-{command[0]}", *command[1:]])
        output.write_text(run(command[0], *arguments))

    monkeypatch.setattr(sweep_runs, "fairseq", fairseq)
    return tmp_path


def run_page(example: str, folder: Path, assumed: Callable[[], None]) -> None:
    """Run the commands of a page.

    Args:
        folder: where they run, with the text that the page begins with
        assumed: makes what the page assumes before its analyses
    """
    commands = page_commands(ROOT / "examples" / example / "README.md", folder)
    for words in commands:
        if words[1] != "analyze":
            run_command(words, folder)
    assumed()
    for words in commands:
        if words[1] == "analyze":
            run_command(words, folder)


def binarize_corpora(folder: Path, corpora: Dict[str, Tuple[str, str]]) -> None:
    """A data directory for each corpus, with one dictionary."""
    for name, languages in corpora.items():
        text = {split: make_text(seed) for seed, split in enumerate(("train", "valid", "test"))}
        binarize(folder / "data-bin" / name, text, *languages, joined=True)


def write_systems(folder: Path, reference: str, names: Sequence[str], pairs: Sequence[Pair]) -> None:
    """The reference of a test set, and what fairseq-generate would print of several systems, which differ."""
    (folder / reference).write_text("".join(f"{target}\n" for _, target in pairs))
    for place, name in enumerate(names, start=2):
        lines = [target if number % place else "z1 z2" for number, (_, target) in enumerate(pairs)]
        generated = [f"D-{number}\t-0.5\t{line}\n" for number, line in enumerate(lines)]
        (folder / f"{name}.out").write_text("".join(generated))


def train_on_nist(folder: Path, save_dir: str, *options: str) -> None:
    """Train a system of which a page says how it differs from the one whose training is on the page."""
    data = ["data-bin/nist.zh-en", "-s", "zh", "-t", "en", "--user-dir", ctxgates.user_dir()]
    common = ["--share-all-embeddings", "--optimizer", "adam", "--lr", "1e-3", "--max-tokens", "4096"]
    run_command(["fairseq-train", *data, *common, *options, "--save-dir", save_dir], folder)


def check_pictures(folder: Path, *names: str) -> None:
    """These pictures were drawn, and no others."""
    found = {path.name: path.stat().st_size for path in folder.glob("*.png")}
    assert found.keys() == {f"{name}.png" for name in names}
    assert min(found.values()) > 10_000


@pytest.mark.slow
def test_the_page_of_context_gates_runs(folder: Path) -> None:
    binarize_corpora(folder, {"iwslt14.de-en": ("de", "en"), "wmt14.en-de": ("en", "de")})
    for seed, name in enumerate(("train", "nist02", "nist05", "nist06", "nist08")):
        write_text(folder, f"{name}.bpe", ("zh", "en"), make_text(seed))

    def assumed() -> None:
        systems = ("transformer", "gates", "rcg")
        write_systems(folder, "test.en", systems, make_text(2))
        write_systems(folder, "nist08.en", [f"nist08.{name}" for name in systems], make_text(4))
        train_on_nist(folder, "checkpoints/nist.transformer", "--arch", "transformer", *SMOOTHED)
        gates = ("--arch", "rcg_transformer", "--criterion", "gate_regularized_cross_entropy", "--gate-lambda", "0")
        train_on_nist(folder, "checkpoints/nist.gates", "--task", "context_translation", *gates)

    run_page("rcg", folder, assumed)

    check_pictures(folder, "lambda", "errors", "gates", "rcg", "lengths")
    assert len(list((folder / "sweeps").glob("*/*/test.out"))) == 2 + 3  # two settings each, and a baseline


@pytest.mark.slow
def test_the_page_of_relations_runs(folder: Path) -> None:
    corpora = {"iwslt15.en-vi": ("en", "vi"), "wmt18.en-tr": ("en", "tr"), "iwslt14.de-en": ("de", "en")}
    binarize_corpora(folder, corpora)

    def assumed() -> None:
        fusions = ("transformer", "linear", "gate", "concat-gate", "transform", "compare")
        write_systems(folder, "tst2013.vi", fusions, make_text(2))
        write_systems(folder, "test.tr", ("wmt18.transformer", "wmt18.transform"), make_text(2))

    run_page("fra", folder, assumed)

    check_pictures(folder, "relations", "layers", "lambda", "lengths")
    assert len(list((folder / "sweeps").glob("*/*/test.out"))) == 3 + 3  # two settings each, and the baselines


@pytest.mark.slow
def test_the_page_of_the_inter_sentence_gate_runs(folder: Path) -> None:
    for seed, name in enumerate(("train", "nist05", "nist02", "nist03", "nist04", "nist06", "nist08")):
        long = [("q1 " * 50, "z1"), ("q1 " * 51, "z1"), ("q1", "z1 " * 51)] if name == "train" else []
        write_text(folder, name, ("zh", "en"), [*make_text(seed), *long])

    def assumed() -> None:
        ablations = ("isg-null", "isg-closed", "isg-random")
        write_systems(folder, "nist02.en", ("rnnsearch", "concatenation", "isg", *ablations), make_text(2))
        write_text(folder, "gigaword", ("zh", "en"), make_text(8))
        write_text(folder, "pairs", ("zh", "en"), make_text(3))
        write_text(folder, "pairs.before", ("zh", "en"), make_text(4))
        write_text(folder, "pairs.wrong", ("zh", "en"), make_text(5))

    run_page("isg", folder, assumed)

    sizes = [
        len(Split(folder / "data-bin" / name, "train", "zh", "en").load_language("zh"))
        for name in ("nist.zh-en", "nist50.zh-en")
    ]
    assert sizes == [DOCUMENTS * SENTENCES + 3, DOCUMENTS * SENTENCES + 1]
    check_pictures(folder, "entropy", "cxmi")
    assert (folder / "entropy.csv").stat().st_size > 1000


@pytest.mark.slow
def test_the_page_of_smoothing_runs(folder: Path) -> None:
    sets = {name: make_text(seed) for seed, name in enumerate(("train", "nist02", *NIST))}
    sets["nist"] = [pair for name in NIST for pair in sets[name]]
    for name, pairs in sets.items():
        write_text(folder, name, ("zh", "en"), pairs)

    def assumed() -> None:
        smoothed = [f"{model}-{kind}" for model in ("fcwm", "ccwm") for kind in SMOOTHING_KINDS]
        write_systems(folder, "nist03.en", ("rnnsearch", *smoothed), sets["nist03"])
        write_systems(folder, "nist.en", [f"all.{name}" for name in ("rnnsearch", *smoothed)], sets["nist"])

    run_page("car", folder, assumed)

    check_pictures(folder, "unknowns")

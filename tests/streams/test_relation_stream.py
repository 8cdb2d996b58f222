"""Relations: every row of every batch has the mask of its own sentence, in whatever order and company it comes."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import pytest
import torch
from fairseq.data import LanguagePairDataset

import ctxgates
from fairseq_ctxgates.data.data_directory import find_splits, fingerprint
from fairseq_ctxgates.data.side_stream_files import write_side_stream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations import stream
from fairseq_ctxgates.relations.extraction import build
from fairseq_ctxgates.relations.extraction.build import ExtractionOptions, ServerOptions
from fairseq_ctxgates.relations.mask import END_OF_TUPLE, pack_tuples, relation_mask, shift_mask
from fairseq_ctxgates.relations.stream import Relations
from tests.helpers.corpus import binarize, make_dictionary, write_split
from tests.helpers.extractors import StubExtractor, parsing_by
from tests.helpers.fairseq_commands import setup_task, write_relations
from tests.helpers.models import build_model, make_task

Tuples = List[List[int]]  # of a sentence: each as the positions of its words
DICTIONARY = make_dictionary([" ".join(f"w{number}" for number in range(30))])


def draw(mask: np.ndarray) -> List[str]:
    """A mask as lines: ``x`` where i may see j."""
    return ["".join("x" if seen else "." for seen in row) for row in mask]


# --- the mask, by hand ------------------------------------------------------------------------------------------------

# "the@@ y sing songs and she hums ." with the tuples (they, sing, songs) and (she, hums, songs), which share a word,
# and end of sentence: positions 0 to 8.
TUPLES = [[0, 1, 2, 3], [5, 6, 3]]
PAIR = [
    "xxxx.....",
    "xxxx.....",
    "xxxx.....",
    "xxxx.xx..",
    "....x....",
    "...x.xx..",
    "...x.xx..",
    ".......x.",
    "........x",
]
WORD = [
    "xxxx.xx..",
    "xxxx.xx..",
    "xxxx.xx..",
    "xxxx.xx..",
    "....x....",
    "xxxx.xx..",
    "xxxx.xx..",
    ".......x.",
    "........x",
]


@pytest.mark.parametrize(("across_tuples", "expected"), [(False, PAIR), (True, WORD)])
def test_two_tuples_that_share_a_word(across_tuples: bool, expected: List[str]) -> None:
    assert draw(relation_mask(pack_tuples(TUPLES), 9, across_tuples)) == expected


@pytest.mark.parametrize("across_tuples", [False, True])
def test_no_tuples(across_tuples: bool) -> None:
    assert draw(relation_mask(pack_tuples([]), 3, across_tuples)) == ["xxx"] * 3
    assert draw(relation_mask(pack_tuples([[]]), 1, across_tuples)) == ["x"]


@pytest.mark.parametrize("across_tuples", [False, True])
def test_a_tuple_of_one_word(across_tuples: bool) -> None:
    assert draw(relation_mask(pack_tuples([[1]]), 4, across_tuples)) == ["x...", ".x..", "..x.", "...x"]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (9, PAIR),
        (6, ["xxxx..", "xxxx..", "xxxx..", "xxxx..", "....x.", ".....x"]),  # the fifth is end of sentence now
        (3, ["xx.", "xx.", "..x"]),
        (1, ["x"]),
    ],
)
def test_words_that_were_cut_off(length: int, expected: List[str]) -> None:
    assert draw(relation_mask(pack_tuples(TUPLES), length)) == expected
    assert draw(relation_mask(pack_tuples([[5, 6], [7]]), 4)) == ["xxxx"] * 4  # no tuple is left


def test_each_tuple_that_has_positions_is_packed_with_its_end() -> None:
    assert pack_tuples(TUPLES).tolist() == [0, 1, 2, 3, -1, 5, 6, 3, -1]
    assert pack_tuples([[], [4]]).tolist() == [4, -1]
    assert pack_tuples([]).dtype == pack_tuples(TUPLES).dtype == np.int32


# --- batches ----------------------------------------------------------------------------------------------------------


def expected_mask(tuples: Sequence[Sequence[int]], length: int, kind: str) -> np.ndarray:
    """The mask that the tuples should give, made word by word."""
    groups = [{word for word in group if word < length - 1} for group in tuples]
    groups = [group for group in groups if group]
    if kind == "word" and groups:
        groups = [set.union(*groups)]
    return np.array(
        [
            [not groups or i == j or any(i in group and j in group for group in groups) for j in range(length)]
            for i in range(length)
        ]
    )


def make_tuples(lengths: Sequence[int], seed: int) -> List[Tuples]:
    """Up to three tuples of up to five words for each sentence; a third of the sentences have none."""
    rng = random.Random(seed)
    return [
        [sorted(rng.sample(range(length), rng.randint(1, min(5, length)))) for _ in range(rng.choice((0, 1, 3)))]
        for length in lengths
    ]


def write_corpus(folder: Path, splits: Dict[str, int], seed: int) -> Dict[str, List[Tuples]]:
    """A data directory with these numbers of sentences, and their relations. Returns the tuples."""
    folder.mkdir(exist_ok=True)
    for lang in ("de", "en"):
        DICTIONARY.save(str(folder / f"dict.{lang}.txt"))
    rng, tuples = random.Random(seed), {}
    for name, number in splits.items():
        lengths = [rng.randint(1, 12) for _ in range(number)]
        sentences = [" ".join(rng.choices(DICTIONARY.symbols[4:], k=length)) for length in lengths]
        write_split(folder / f"{name}.de-en.de", sentences, DICTIONARY)
        write_split(folder / f"{name}.de-en.en", ["w1 w2"] * number, DICTIONARY)
        tuples[name] = make_tuples(lengths, rng.randrange(1000))
        write_relations(folder, name, list(map(pack_tuples, tuples[name])))
    return tuples


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A data directory and its tuples. Not to be changed."""
    folder = tmp_path_factory.mktemp("relations")
    return folder, write_corpus(folder, {"train": 60, "train1": 12, "valid": 11}, seed=1)


def make_relation_task(data: Any, **options: Any) -> Any:
    return setup_task(data, **{"load_gate_labels": False, "load_relations": True, **options})


def check(task: Any, split: str, tuples: Sequence[Tuples], kind: str = "pair", **options: Any) -> List[int]:
    """Every row of a shuffled epoch has the mask of its own sentence. Returns the lengths of the batches' sources."""
    numbers, lengths = [], []
    options = {"max_sentences": 8, "seed": 1, **options}
    for batch in task.get_batch_iterator(task.dataset(split), **options).next_epoch_itr(shuffle=True):
        masks, tokens = batch["net_input"]["relation_mask"], batch["net_input"]["src_tokens"]
        assert masks.dtype == torch.bool and masks.shape == (*tokens.shape, tokens.size(1))
        for number, mask, row in zip(batch["id"].tolist(), masks, tokens):
            is_token = row != task.source_dictionary.pad()
            own = mask[is_token][:, is_token].numpy()
            assert draw(own) == draw(expected_mask(tuples[number], int(is_token.sum()), kind))
            assert mask[~is_token].all(), "padding sees something"
            numbers.append(number)
        lengths.append(tokens.size(1))
    assert sorted(numbers) == list(range(len(tuples)))
    return lengths


@pytest.mark.parametrize("kind", ["pair", "word"])
@pytest.mark.parametrize(
    "options", [{}, {"left_pad_source": False}, {"required_seq_len_multiple": 8}], ids=lambda options: " ".join(options)
)
@pytest.mark.parametrize("limit", [{}, {"max_sentences": None, "max_tokens": 60}, {"max_sentences": 1}], ids=str)
def test_shuffled_batches(corpus: Any, kind: str, options: Dict[str, Any], limit: Dict[str, Any]) -> None:
    data, tuples = corpus
    task = make_relation_task(data, relation_mask=kind, **options)
    task.load_dataset("train")
    check(task, "train", tuples["train"], kind, **limit)


@pytest.mark.parametrize("options", [{}, {"left_pad_source": False}, {"required_seq_len_multiple": 8}], ids=str)
def test_shifted_masks(corpus: Any, options: Dict[str, Any]) -> None:
    """As many words see as many others as with ``pair``, in whatever batch a sentence is; end of sentence stays."""
    data, tuples = corpus
    task = make_relation_task(data, relation_mask="shifted", **options)
    task.load_dataset("train")
    found: Dict[int, List[str]] = {}
    for max_sentences in (8, 1):
        for batch in task.get_batch_iterator(task.dataset("train"), max_sentences=max_sentences).next_epoch_itr():
            tokens = batch["net_input"]["src_tokens"]
            for number, mask, row in zip(batch["id"].tolist(), batch["net_input"]["relation_mask"], tokens):
                is_token = row != task.source_dictionary.pad()
                own = mask[is_token][:, is_token].numpy()
                expected = expected_mask(tuples["train"][number], len(own), "pair")
                assert sorted(own.sum(axis=1)) == sorted(expected.sum(axis=1))
                assert (own == own.T).all() and own.diagonal().all()
                assert (own[-1] == expected[-1]).all()
                assert found.setdefault(number, draw(own)) == draw(own)
    changed = [
        draw(expected_mask(tuples["train"][number], len(mask), "pair")) != mask for number, mask in found.items()
    ]
    assert sum(changed) > len(changed) / 4  # many have no tuple, or one of all words


def test_masks_are_shifted_alike_when_words_drop_out(tmp_path: Path) -> None:
    """The sentence as it stands in the data decides how far, so that the masks of all epochs are the same."""
    write_corpus(tmp_path, {"train": 30}, seed=4)
    ctxgates.main(["preceding-sentences", str(tmp_path), "-s", "de", "-t", "en", "--one-document"])
    found = []
    for dropout in (0.0, 0.5):
        preceding = {"load_preceding_sentences": True, "coword_dropout": dropout}
        task = make_relation_task(tmp_path, relation_mask="shifted", **preceding)
        task.load_dataset("train")
        dataset = task.dataset("train")
        for epoch in (1, 2):
            dataset.set_epoch(epoch)
            inputs = [dataset.collater([dataset[row]])["net_input"] for row in range(30)]
            sources = [one["src_tokens"].tolist() for one in inputs]
            found.append((sources, [draw(one["relation_mask"][0]) for one in inputs]))
    sources, masks = zip(*found)
    assert sources[0] == sources[1] != sources[2] != sources[3]
    assert masks[0] == masks[1] == masks[2] == masks[3]


def test_a_sentence_decides_how_far_its_mask_is_shifted() -> None:
    tuples, length = [[0, 1], [2, 3, 6]], 9
    all_shifts = [
        draw(relation_mask(pack_tuples([[(word + distance) % (length - 1) for word in one] for one in tuples]), length))
        for distance in range(length - 1)
    ]
    mask = relation_mask(pack_tuples(tuples), length)
    sentences = [np.arange(length) + number for number in range(50)]
    shifts = [all_shifts.index(draw(shift_mask(mask, sentence))) for sentence in sentences]
    assert set(shifts) == set(range(1, length - 1))
    assert all_shifts.index(draw(shift_mask(mask, sentences[0].astype(np.int32)))) == shifts[0]


@pytest.mark.parametrize(("tuples", "sentence"), [([], [2]), ([], [5, 2]), ([[0]], [5, 2])])
def test_no_or_one_word_cannot_be_shifted(tuples: List[List[int]], sentence: List[int]) -> None:
    mask = relation_mask(pack_tuples(tuples), len(sentence))
    assert (shift_mask(mask, np.array(sentence)) == mask).all()


def test_truncated_sources(corpus: Any) -> None:
    data, tuples = corpus
    task = make_relation_task(data, truncate_source=True, max_source_positions=5)
    task.load_dataset("train")
    assert max(check(task, "train", tuples["train"])) == 5


@pytest.mark.skipif(np.__version__ >= "2", reason="fairseq itself fails on --num-batch-buckets with NumPy 2")
def test_sources_padded_to_buckets(corpus: Any) -> None:
    data, tuples = corpus
    task = make_relation_task(data, num_batch_buckets=2)
    task.load_dataset("train")
    assert len(set(check(task, "train", tuples["train"], max_sentences=None, max_tokens=200))) <= 2


def test_data_directories_in_turn(corpus: Any, tmp_path: Path) -> None:
    data, tuples = corpus
    other = write_corpus(tmp_path / "other", {"train": 20}, seed=2)
    task = make_relation_task(f"{data}:{tmp_path / 'other'}")
    for epoch, expected in ((1, tuples["train"]), (2, other["train"]), (3, tuples["train"])):
        task.load_dataset("train", epoch=epoch)
        check(task, "train", expected, epoch=epoch)


@pytest.mark.parametrize("upsample", [1, 3])
def test_shards_of_which_the_first_is_repeated(corpus: Any, upsample: int) -> None:
    data, tuples = corpus
    task = make_relation_task(data, upsample_primary=upsample)
    task.load_dataset("train", combine=True)
    check(task, "train", tuples["train"] * upsample + tuples["train1"])


def test_a_stream_without_any_tuple(tmp_path: Path) -> None:
    write_corpus(tmp_path, {"train": 9}, seed=3)
    write_relations(tmp_path, "train", [[]] * 9)
    task = make_relation_task(tmp_path)
    task.load_dataset("train")
    check(task, "train", [[]] * 9)


def test_models_load_what_they_need(corpus: Any) -> None:
    """Compare Fusion needs no relations."""
    for ablation, loaded in (("none", True), ("compare", False)):
        task = make_relation_task(corpus[0], load_relations=False)
        build_model("fra_transformer", task, relation_ablation=ablation)
        task.load_dataset("valid")
        (batch, *_) = task.get_batch_iterator(task.dataset("valid"), max_sentences=4).next_epoch_itr()
        assert ("relation_mask" in batch["net_input"]) == loaded


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 4, -1], r"row 3 holds \[0, 4, -1\], .*from 0 to 3"),  # of four words and end of sentence
        ([0, 9, -1], "row 3 holds"),
        ([-2, -1], "row 3 holds"),
        ([0, 1], r"row 3 holds \[0, 1\].*with -1 after each"),
        ([-1], "row 3 holds"),
        ([0, -1, -1], "row 3 holds"),
    ],
)
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_rows_that_are_no_tuples(
    tmp_path: Path, row: List[int], message: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHECKED_AT_ONCE", at_once)
    write_corpus(tmp_path, {"train": 4}, seed=4)
    write_split(tmp_path / "train.de-en.de", ["w1 w2 w3", "w1", "w1 w2 w3 w4", "w5"], DICTIONARY)
    write_relations(tmp_path, "train", [[0, 2, -1], [], [0, 3, -1, 1, 2, -1], [0, -1]])
    task = make_relation_task(tmp_path)
    task.load_dataset("train")  # which is as it should be
    write_relations(tmp_path, "train", [[0, 2, -1], [], row, [0, -1]])
    with pytest.raises(UserError, match=f"train.relation.de-en.bin: {message}.*ctxgates relations"):
        task.load_dataset("train")


def test_streams_that_do_not_fit(tmp_path: Path) -> None:
    write_corpus(tmp_path, {"train": 6}, seed=5)
    task = make_relation_task(tmp_path)
    write_relations(tmp_path, "train", [[]] * 5)
    with pytest.raises(UserError, match="relation.de-en.idx has 5 rows for 6 sentences; run: ctxgates relations"):
        task.load_dataset("train")
    write_split(tmp_path / "train.de-en.de", ["w1"] * 6, DICTIONARY)
    with pytest.raises(UserError, match="train.relation.de-en.bin was made for other data"):
        task.load_dataset("train")
    (tmp_path / "train.relation.de-en.idx").unlink()
    with pytest.raises(UserError, match="train.relation.de-en.idx not found; run: ctxgates relations .* -s de -t en"):
        task.load_dataset("train")


def test_the_target_may_change(tmp_path: Path) -> None:
    """Relations are those of the source."""
    tuples = write_corpus(tmp_path, {"train": 6}, seed=6)
    write_split(tmp_path / "train.de-en.en", ["w3"] * 6, DICTIONARY)
    task = make_relation_task(tmp_path)
    task.load_dataset("train")
    check(task, "train", tuples["train"])


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("transformer", {"load_relations": True}, "--load-relations needs a model that reads them"),
        ("isg_transformer", {"load_relations": True}, "--load-relations needs a model that reads them"),
        (
            "fra_transformer",
            {"concatenate_preceding": "</s>"},
            "--concatenate-preceding cannot be combined with the stream 'relation'",
        ),
        ("transformer", {"relation_extractor": "stanza"}, "--relation-extractor stanza needs a model that reads"),
        ("fra_transformer", {"corenlp_url": "http://a:1"}, "--corenlp-url http://a:1 is .*: give --relation-extractor"),
        (
            "fra_transformer",
            {"relation_language": "en"},
            "--relation-language en is the language of an extractor: give",
        ),
    ],
)
def test_options_that_do_not_fit(arch: str, options: Dict[str, Any], message: str) -> None:
    task = make_task(**options)
    build_model(arch, task)
    with pytest.raises(UserError, match=message):
        task.build_generator([], None)


# --- lines of fairseq-interactive -------------------------------------------------------------------------------------


def first_and_last(words: Sequence[str]) -> List[List[int]]:
    """The first and the last word of a sentence of three words or more."""
    return [[0, len(words) - 1]] if len(words) > 2 else []


def lines_dataset(lines: Sequence[str], dictionary: Any) -> LanguagePairDataset:
    tokens = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
    return LanguagePairDataset(tokens, [len(line) for line in tokens], dictionary)


@pytest.mark.parametrize("post_process", [None, "subword_nmt", "@@ ", "sentencepiece"])
def test_relations_of_lines(post_process: str | None) -> None:
    extractor = StubExtractor(first_and_last)
    pieces = "▁they ▁so ngs ▁hum" if post_process == "sentencepiece" else "th@@ ey sing so@@ ngs &amp; hum"
    dictionary = make_dictionary([pieces])
    config = make_task(relation_extractor="first-and-last", corenlp_url="http://a:1,http://b:2").cfg
    config.source_lang, config.post_process = "en", post_process
    if post_process == "sentencepiece":
        lines = ["▁they ▁hum ▁so ngs", "", "▁hum"]
        words, mask = [["they", "hum", "songs"], [], ["hum"]], ["x.xx.", ".x...", "x.xx.", "x.xx.", "....x"]
    else:
        lines = ["th@@ ey &amp; so@@ ngs", "", "hum unseen"]
        words, mask = (
            [["they", "&", "songs"], [], ["hum", "unk"]],
            ["xx.xx.", "xx.xx.", "..x...", "xx.xx.", "xx.xx.", ".....x"],
        )
    nothing = ["x" * len(mask)] * len(mask)
    with parsing_by(extractor) as built:
        for _ in range(2):
            found = Relations.from_interactive_lines(lines_dataset(lines, dictionary), [], config, config)
            assert [draw(relation_mask(row, len(mask))) for row in found.rows] == [mask, nothing, nothing]
        assert extractor.parsed == [" ".join(sentence) for sentence in words if sentence] * 2
        kind = "sentencepiece" if post_process == "sentencepiece" else "subword_nmt"
        options = ExtractionOptions("first-and-last", "en", kind)
        built.assert_called_once_with(options, ServerOptions(("http://a:1", "http://b:2")))
        config.relation_language = "nl"
        Relations.from_interactive_lines(lines_dataset(lines, dictionary), [], config, config)
        assert built.call_args[0][0].language == "nl"
    assert extractor.is_closed


@pytest.mark.parametrize("found_by", ["first-and-last", "stanza", "jsonl"])
def test_lines_are_parsed_as_the_data_were(found_by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the same language, kind of subwords and CoreNLP properties. If the data were parsed by another extractor,
    a warning says so, and its properties are not taken."""
    data = binarize(tmp_path / "data", {"test": [("a b", "c")]}, "en", "de")
    (test,) = find_splits(data, "en", "de")
    made: Dict[str, Any] = {"extractor": found_by, "language": "nl", "remove_bpe": "sentencepiece"}
    made["properties"] = [["openie.max", "100"]]
    metadata = {"fingerprint": fingerprint(test, Relations.languages), "options": made}
    write_side_stream(test.stream_prefix("relation"), np.int32, metadata, [[]])
    config = make_task(relation_extractor="first-and-last").cfg
    config.data, config.source_lang, config.target_lang = str(data), "en", "de"
    extractor = StubExtractor()
    with parsing_by(extractor) as built:
        for _ in range(2):
            Relations.from_interactive_lines(lines_dataset(["▁a b"], make_dictionary(["▁a b"])), [], config, config)
    assert extractor.parsed == ["ab"] * 2
    (options, _), _ = built.call_args
    properties = (("openie.max", "100"),) if found_by == "first-and-last" else ()
    assert options == ExtractionOptions("first-and-last", "nl", "sentencepiece", properties)
    warnings = [record.getMessage() for record in caplog.records if "are of stanza" in record.getMessage()]
    assert len(warnings) == (found_by == "stanza")


def test_lines_of_sentencepiece_need_its_option() -> None:
    config = make_task(relation_extractor="corenlp-openie").cfg
    config.source_lang = "en"
    dictionary = make_dictionary(["▁they ▁so ngs ▁hum"])
    with pytest.raises(UserError, match="dict.en.txt holds the subwords of sentencepiece: give --remove-bpe sentence"):
        Relations.from_interactive_lines(lines_dataset(["▁they"], dictionary), [], config, config)


@pytest.mark.parametrize(
    ("languages", "made", "command"),
    [
        (("en", "de"), None, "-s en -t de --extractor corenlp-openie"),
        (("de", "en"), None, "-s de -t en --extractor corenlp-dependencies"),
        (("en", "de"), {"extractor": "jsonl"}, "-s en -t de --extractor jsonl --relations test=FILE"),
        (
            ("src", "de"),
            {"extractor": "corenlp-openie", "language": "en", "remove_bpe": "none", "properties": [["a.b", "1"]]},
            "-s src -t de --extractor corenlp-openie --language en --remove-bpe none --corenlp-property a.b=1",
        ),
    ],
)
def test_a_missing_stream_is_to_be_made_as_the_others_were(
    languages: Tuple[str, str], made: Optional[Dict[str, Any]], command: str, tmp_path: Path
) -> None:
    data = binarize(tmp_path / "data", {"train": [("a b", "c")], "test": [("a b", "c")]}, *languages)
    train, test = find_splits(data, *languages)
    if made:
        metadata = {"fingerprint": fingerprint(train, Relations.languages), "options": made}
        write_side_stream(train.stream_prefix("relation"), np.int32, metadata, [[]])
    with pytest.raises(UserError, match=f"idx not found; run: ctxgates relations {re.escape(f'{data} {command}')}$"):
        Relations.load_split(test)


def test_relations_of_lines_by_corenlp(corenlp_url: str) -> None:
    """From a real server: "Barack Obama was born in Hawaii"."""
    line = "yesterday , Ba@@ rack Obama was born in Ha@@ wa@@ ii ."
    config = make_task(relation_extractor="corenlp-openie", corenlp_url=corenlp_url).cfg
    config.source_lang = "en"
    (row, nothing) = Relations.from_interactive_lines(
        lines_dataset([line, ""], make_dictionary([line])), [], config, config
    ).rows
    build.close_extractors()
    mask = relation_mask(row, 13)
    names, place, alone = [2, 3, 4], [8, 9, 10], [1, 11, 12]
    assert mask[np.ix_(names, names + [5, 6, 7] + place)].all() and mask[np.ix_(place, names)].all()
    assert (mask[alone] == np.eye(13, dtype=bool)[alone]).all(), "the comma, the full stop and end of sentence"
    assert len(nothing) == 0


def test_lines_without_an_extractor_have_none(caplog: pytest.LogCaptureFixture) -> None:
    """The log says once that there is no extractor."""
    stream._warn_that_there_are_none.cache_clear()
    dictionary = make_dictionary(["a b"])
    for _ in range(3):
        cfg = make_task().cfg
        found = Relations.from_interactive_lines(lines_dataset(["a b", "b"], dictionary), [], cfg, cfg)
        assert [row.tolist() for row in found.rows] == [[], []]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "no --relation-extractor is given: every line is taken to have no relations ("
    )


def test_an_extractor_that_does_not_exist() -> None:
    config = make_task(relation_extractor="corenlp").cfg
    with pytest.raises(UserError, match="'corenlp' is not a relation extractor: name one of corenlp-openie"):
        Relations.from_interactive_lines(lines_dataset(["a"], make_dictionary(["a"])), [], config, config)


def test_relations_of_lines_from_a_real_server(corenlp_url: str) -> None:
    """CoreNLP's tuple is (man, sits in, garden), both subwords of the last; a line that has none follows."""
    build.close_extractors()
    dictionary = make_dictionary(["a man sits in the gar@@ den ."])
    config = make_task(relation_extractor="corenlp-openie", corenlp_url=corenlp_url).cfg
    config.source_lang, config.post_process = "en", None
    found = Relations.from_interactive_lines(
        lines_dataset(["a man sits in the gar@@ den .", "the ."], dictionary), [], config, config
    )
    build.close_extractors()
    assert [row.tolist() for row in found.rows] == [[1, 2, 3, 5, 6, END_OF_TUPLE], []]

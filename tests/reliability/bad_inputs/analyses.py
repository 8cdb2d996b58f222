"""Bad inputs of ``ctxgates analyze``."""

from __future__ import annotations

import gzip
import json
from typing import Any

import torch

from tests.reliability.bad_inputs.row import (
    NO_PARAMETERS,
    Change,
    Rows,
    append,
    bad_file,
    bad_usage,
    bad_value,
    copy,
    cut,
    edit_lines,
    folder,
    nothing,
    put,
    remove,
    save,
    several,
    write,
)

A = "ctxgates analyze"
HUGE = 10**30

# --- systems and references -------------------------------------------------------------------------------------------

COMPARE = f"{A} compare --ref test.en --sys test.en system"
SYSTEM = copy("test.en", "system")


def system(about: str, change: Change, *pieces: str) -> Any:
    return bad_file(about, COMPARE, several(SYSTEM, change), *pieces)


GENERATED = "".join(f"H-{row}\t-1.0\tz1\n" for row in range(8))
TEXTS: Rows = (
    bad_usage("no analysis", A, "required: WHAT"),
    bad_usage("an unknown analysis", f"{A} comparison", "invalid choice: 'comparison'"),
    bad_usage("no references", f"{A} compare --sys test.en", "required: --ref"),
    bad_usage("no systems", f"{A} compare --ref test.en", "required: --sys"),
    system("a system that is not there", remove("system"), "system not found: check the path"),
    system("a system that is a folder", folder("system"), "system", "irectory"),
    system("an empty system", write("system", b""), "system is empty"),
    system("a sentence less", edit_lines("system", lambda lines: lines[1:]), "system has 7 sentences, test.en has 8"),
    system("a sentence more", append("system", b"z\n"), "system has 9 sentences, test.en has 8"),
    system("a system in Latin-1", append("system", b"\xfc\n"), "system, line 9", "UTF-8", "convert the file"),
    system("a system in UTF-16", write("system", ("z\n" * 8).encode("utf-16")), "system, line 1", "UTF-8"),
    system("a binary system", copy("models/plain.pt", "system"), "system, line 1", "UTF-8"),
    system(
        "output that is cut",
        write("system", GENERATED[9:]),
        "system lacks the translations of 1 sentences, the first H-0",
    ),
    system("output of fewer sentences", write("system", GENERATED[:-9]), "system has 7 sentences"),
    system("an empty reference", write("test.en", b""), "test.en is empty"),
    system("a reference in Latin-1", append("test.en", b"\xfc\n"), "test.en, line 9", "UTF-8"),
    system("a reference that is not there", remove("test.en"), "test.en not found: check the path"),
    bad_value("a system below a file", f"{COMPARE[:-7]} test.de/x", "test.de/x: Not a directory"),
    bad_value("a system that is not compressed", f"{COMPARE[:-7]} a.gz", "a.gz not found"),
    bad_file(
        "a compressed system that is cut",
        f"{COMPARE[:-7]} a.gz",
        write("a.gz", gzip.compress(b"z" * 99)[:-9]),
        "a.gz is not a complete gzip file",
    ),
    bad_value(
        "references of two texts", f"{A} compare --ref test.en train.en --sys test.en", "train.en has 16 sentences"
    ),
    bad_file("a name too much", f"{COMPARE} --names a b c", SYSTEM, "--names has 3 names for 2 systems"),
    bad_file("a name twice", f"{COMPARE} --names a a", SYSTEM, "two systems have the same name (a, a)", "--names"),
    bad_value("a system twice", f"{A} compare --ref test.en --sys test.en test.en", "two systems have the same name"),
    bad_usage("an unknown tokenizer", f"{COMPARE} --tokenize 14a", "invalid choice: '14a'"),
    bad_usage("unknown subwords", f"{COMPARE} --remove-bpe bpe", "invalid choice: 'bpe'"),
    *(
        bad_usage(
            f"--resamples {value!r}", f"{COMPARE} --resamples={value!r}", "--resamples", "is not an integer from 1"
        )
        for value in ("0", "-1", "1.5", "many", "")
    ),
    bad_file("results in a folder", f"{COMPARE} --json models", SYSTEM, "--json models is a folder: name a file in it"),
    bad_file("results below a file", f"{COMPARE} --csv test.de/a", SYSTEM, "--csv test.de/a: test.de cannot be made"),
    bad_file("a figure in a folder", f"{COMPARE} --figure models", SYSTEM, "--figure models is a folder"),
)

# --- BLEU by bucket ---------------------------------------------------------------------------------------------------

LENGTH, UNKNOWNS = (f"{A} {name} data --ref test.en --sys test.en" for name in ("bleu-by-length", "bleu-by-unknowns"))
BUCKETS: Rows = (
    *(
        bad_usage(f"--buckets {value!r}", f"{LENGTH} --buckets={value}", f"{value!r} is not a list of whole numbers")
        for value in ("few", "1.5", "10,", ",", "nan", "inf", "1;2", "10-20")
    ),
    *(
        bad_usage(
            f"--buckets {value}", f"{LENGTH} --buckets={value}", f"{value!r} must rise from number to number, from 0"
        )
        for value in ("20,10", "10,10", "-1,10")
    ),
    bad_usage("a first bucket of nothing", f"{LENGTH} --bucket-starts 0,10", "'0,10' must rise", "from 1 or more"),
    bad_usage("buckets twice", f"{LENGTH} --buckets 1 --bucket-starts 1", "not allowed with argument --buckets"),
    bad_usage("a split of a text", f"{LENGTH} --source test.de --gen-subset valid", "--gen-subset would do nothing"),
    bad_value("another split", f"{LENGTH} --gen-subset train", "train of data has 16 sentences, test.en has 8"),
    bad_value("another text", f"{LENGTH} --source train.de", "train.de has 16 sentences, test.en has 8"),
    bad_value("a text that is not there", f"{LENGTH} --source nowhere", "nowhere not found: check the path"),
    bad_value("a split that is not there", f"{LENGTH} --gen-subset tset", "data has no split 'tset' of de-en", "train"),
    bad_value("a directory that is not there", LENGTH.replace("data", "nowhere"), "nowhere is not a directory"),
    bad_value("a language that is not there", f"{LENGTH} -s fr", "data holds data of de-en: check --source-lang"),
    bad_file("a dictionary that is not there", UNKNOWNS, remove("data/dict.de.txt"), "data/dict.de.txt not found"),
    bad_file(
        "a dictionary that is damaged", UNKNOWNS, append("data/dict.de.txt", b"word\n"), "data/dict.de.txt is damaged"
    ),
    bad_file(
        "a shorter dictionary",
        UNKNOWNS,
        edit_lines("data/dict.de.txt", lambda lines: lines[:5]),
        "data/test.de-en.de.bin",
        "data/dict.de.txt",
    ),
    bad_file("a source that is cut", LENGTH, cut("data/test.de-en.de.bin", -2), "data/test.de-en.de.bin is truncated"),
    bad_file("a source that is cut", UNKNOWNS, cut("data/test.de-en.de.idx", -2), "data/test.de-en.de.idx is damaged"),
    bad_file(
        "a dictionary for a text",
        f"{UNKNOWNS} --source test.de",
        write("data/dict.de.txt", b"\xff"),
        "data/dict.de.txt is damaged",
    ),
)

# --- coherence --------------------------------------------------------------------------------------------------------

COHERENCE = f"{A} coherence --ref test.en"
TRAINED = f"{COHERENCE} --one-document --train-vectors train.en"


def vectors(about: str, content: Any, *pieces: str) -> Any:
    change = nothing if content is None else write("vectors", content)
    command = f"{COHERENCE} --one-document --vectors vectors"
    return bad_file(about, command, change, "vectors", *pieces)


WHOLE = "is not a complete file in word2vec's format"
COHERENT: Rows = (
    bad_usage("no documents", f"{COHERENCE} --vectors a", "--documents", "is required"),
    bad_usage("no vectors", f"{COHERENCE} --one-document", "--vectors", "is required"),
    bad_usage("two kinds of vectors", f"{TRAINED} --vectors a", "not allowed with argument --train-vectors"),
    vectors("vectors that are not there", None, WHOLE, "No such file"),
    vectors("empty vectors", b"", WHOLE, "its first line"),
    vectors("vectors without a head", b"a 1 0\n", WHOLE, "its first line"),
    vectors("vectors that are cut", b"3 2\na 1 0\n", WHOLE),
    vectors("vectors of fewer numbers", b"1 3\na 1 0\n", WHOLE),
    vectors("vectors of no words", b"0 2\n", "holds no vectors"),
    vectors("vectors of no dimensions", b"1 0\na\n", "vectors"),
    vectors("far too many vectors", f"{HUGE} 2\na 1 0\n".encode(), WHOLE),
    vectors("far too many dimensions", f"1 {HUGE}\na 1 0\n".encode(), WHOLE),
    vectors("binary vectors that are cut", b"2 2\na \x80\x3f\x80", WHOLE),
    bad_file(
        "compressed vectors that are cut",
        f"{COHERENCE} --one-document --vectors vectors.gz",
        write("vectors.gz", gzip.compress(b"1 2\na 1 0\n")[:-12]),
        f"vectors.gz {WHOLE}",
    ),
    bad_value("vectors that are a folder", f"{COHERENCE} --one-document --vectors models", "models", WHOLE, "irectory"),
    *(
        bad_value(f"vectors to save as {ending}", f"{TRAINED} --save-vectors a.txt{ending}", f"the ending {ending}")
        for ending in (".gz", ".bz2", ".xz")
    ),
    bad_file(
        "vectors that only seem compressed",
        f"{COHERENCE} --one-document --vectors vectors.xz",
        write("vectors.xz", "1 2\na 1 0\n"),
        "vectors.xz is not a complete file in word2vec's format",
    ),
    bad_value(
        "training text that is not there",
        f"{COHERENCE} --one-document --train-vectors a",
        "a not found: check the path",
    ),
    bad_value(
        "training text that is a folder", f"{COHERENCE} --one-document --train-vectors models", "models: Is a directory"
    ),
    bad_file(
        "training text in Latin-1", TRAINED, append("train.en", b"\xfc\n"), "train.en, line 17: not text in UTF-8"
    ),
    bad_file(
        "no training text",
        TRAINED,
        write("train.en", b""),
        "--train-vectors train.en: no word occurs 5 times",
        "--min-c",
    ),
    *(
        bad_usage(f"--{option} {value}", f"{TRAINED} --{option}={value}", f"--{option}", "is not an integer from 1")
        for option in ("dim", "window", "min-count", "epochs")
        for value in ("0", "-1", "few")
    ),
    *(
        bad_usage(f"--{option} {HUGE}", f"{TRAINED} --{option} {HUGE}", f"--{option}", str(HUGE))
        for option in ("dim", "window", "min-count", "epochs")
    ),
    bad_usage(
        "a size of vectors that are there", f"{COHERENCE} --one-document --vectors a --dim 3", "--dim would do nothing"
    ),
    bad_value(
        "other documents", f"{COHERENCE} --documents train.names --vectors a", "train.names names the documents of 16"
    ),
    bad_file(
        "documents of one sentence",
        f"{COHERENCE} --documents a --vectors b",
        write("a", "1\n2\n3\n4\n5\n6\n7\n8\n"),
        "no two sentences of test.en are of one document",
    ),
    bad_value("a system of another text", f"{TRAINED} --sys train.en", "train.en has 16 sentences, test.en has 8"),
    bad_value(
        "a system called reference",
        f"{TRAINED} --sys test.de --names reference",
        "--names: 'reference' is the name of --ref",
    ),
    bad_usage("names of no systems", f"{TRAINED} --names a", "--names would do nothing: it needs --sys"),
    bad_usage("a seed that is a word", f"{TRAINED} --seed one", "--seed: 'one' is not an integer from 0"),
    bad_usage("a seed below zero", f"{TRAINED} --min-count 1 --seed=-1", "--seed"),
)

# --- models -----------------------------------------------------------------------------------------------------------

GATES = f"{A} gates data --cpu --path models/gated.pt"
DECODING = f"{A} forced-decoding data --cpu --path models/plain.pt"
CXMI = f"{A} cxmi data --cpu --path models/isg.pt"
ENTROPY = f"{A} attention-entropy data --cpu --path models/isg.pt"
RELATIONS = f"{A} relations data --cpu --path models/fra.pt"
OVERRIDES = "--model-overrides"


def model(about: str, change: Change, *pieces: str) -> Any:
    return bad_file(about, f"{A} forced-decoding data --cpu --path other.pt", change, *pieces)


def edited(path: str, command: str, *pieces: str) -> Any:
    """A stream that holds something else; its digest shows it."""
    return bad_file(f"{path} of other bytes", command, put(path, 0, "B", 77), path.rpartition(".")[0], *pieces)


IS_DAMAGED = "other.pt is damaged ("
MODELS: Rows = (
    bad_usage("no model", f"{A} gates data", "required: --path"),
    model("a model that is not there", nothing, "other.pt not found: give a checkpoint of fairseq-train to --path"),
    model("a model that is a folder", folder("other.pt"), "other.pt is a folder: name a checkpoint in it"),
    model("an empty model", write("other.pt", b""), IS_DAMAGED),
    model("a model that is cut", several(copy("models/plain.pt", "other.pt"), cut("other.pt", 9000)), IS_DAMAGED),
    model("a list for a model", save("other.pt", [1]), NO_PARAMETERS),
    model("a tensor for a model", save("other.pt", torch.zeros(2)), NO_PARAMETERS),
    model("a number for parameters", save("other.pt", {"model": 3}), NO_PARAMETERS),
    model("a model that is text", copy("test.de", "other.pt"), "other.pt"),
    model("a model of zeros", write("other.pt", bytes(999)), "other.pt"),
    bad_file(
        "a model of another dictionary",
        DECODING,
        append("data/dict.de.txt", b"word 3\n"),
        "models/plain.pt is not a complete",
        "or was trained with dictionaries other than those of data",
    ),
    bad_file("a dictionary that is not there", DECODING, remove("data/dict.en.txt"), "dict.en.txt not found"),
    bad_file("a dictionary that is damaged", DECODING, append("data/dict.en.txt", b"word\n"), "dict.en.txt"),
    bad_file("a dictionary in Latin-1", DECODING, append("data/dict.en.txt", b"\xfc 3\n"), "dict.en.txt"),
    bad_value("a directory that is not there", f"{A} forced-decoding nowhere --cpu --path models/plain.pt", "nowhere"),
    bad_value("a file for a directory", f"{A} forced-decoding test.de --cpu --path models/plain.pt", "test.de"),
    bad_value("another language", f"{DECODING} -s fr", "dict.fr.txt not found"),
    bad_value("a second model that is not there", f"{DECODING} b.pt", "b.pt not found"),
    bad_value("a model twice", f"{DECODING} models/plain.pt", "two systems have the same name"),
    bad_value("a name too much", f"{DECODING} --names a b", "--names has 2 names for 1 systems"),
    *(
        bad_value(
            "a split that is not there",
            f"{command} --gen-subset tset",
            "data has no split 'tset' of de-en: it has train",
        )
        for command in (GATES, DECODING, CXMI, ENTROPY, RELATIONS)
    ),
    *(
        bad_value("one token in a batch", f"{command} --max-tokens 1", "--max-tokens 1")
        for command in (GATES, DECODING, CXMI, ENTROPY)
    ),
    *(
        bad_usage(f"{option} {value!r}", f"{DECODING} {option}={value!r}", option, "is not an integer from 1")
        for option in ("--max-tokens", "--batch-size")
        for value in ("0", "-1", "1.5", "few", "nan", "")
    ),
    *(
        bad_usage(f"{option} {HUGE}", f"{DECODING} {option} {HUGE}", option, str(HUGE))
        for option in ("--max-tokens", "--batch-size", "--resamples")
    ),
    *(
        bad_usage(f"{OVERRIDES} {value!r}", f'{DECODING} {OVERRIDES}="{value}"', OVERRIDES, "is not a dictionary")
        for value in ("dropout", "{", "3", "[1]", "{'dropout'}", "{'dropout': x}", "{1: 2}")
    ),
    bad_value(
        "an override that nothing reads",
        f"{DECODING} {OVERRIDES} \"{{'dropuot': 0.1}}\"",
        OVERRIDES,
        "nothing reads 'dropuot'",
    ),
    bad_value("plug-ins that are not there", f"{DECODING} --user-dir nowhere", "--user-dir nowhere not found"),
    bad_file(
        "plug-ins that are damaged",
        f"{DECODING} --user-dir plugin",
        several(folder("plugin"), write("plugin/__init__.py", "import nothing_of_this_name")),
        "--user-dir plugin cannot be imported",
        "nothing_of_this_name",
    ),
    bad_value(
        "a model without gates",
        GATES.replace("gated", "plain"),
        "models/plain.pt has no context gates",
        "--arch rcg_transformer",
    ),
    bad_value("a stock model", GATES.replace("gated", "stock"), "models/stock.pt has no context gates"),
    bad_value(
        "a model without preceding sentences",
        CXMI.replace("isg", "plain"),
        "models/plain.pt reads no preceding sentence",
        "--arch isg_transformer",
    ),
    bad_value("a baseline that is not there", f"{CXMI} --baseline-path a.pt", "a.pt not found"),
    bad_value(
        "an override of its own",
        f"{CXMI} {OVERRIDES} \"{{'inter_sentence_ablation': 'null'}}\"",
        "'inter_sentence_ablation' takes away what cxmi measures",
    ),
    bad_value(
        "a model without the gate",
        ENTROPY.replace("isg", "concatenated"),
        "models/concatenated.pt has no inter-sentence gate",
    ),
    bad_value(
        "an ablation without attention",
        f"{ENTROPY} {OVERRIDES} \"{{'inter_sentence_ablation': 'random'}}\"",
        "under the ablation 'random'",
    ),
    bad_value(
        "an unknown value of an option",
        f"{ENTROPY} {OVERRIDES} \"{{'inter_sentence_ablation': 'nul'}}\"",
        "models/isg.pt, --model-overrides: Invalid value 'nul'",
    ),
    bad_value("a model without relations", RELATIONS.replace("fra", "plain"), "models/plain.pt reads no relations"),
    *(
        bad_value(
            f"--layer {layer}", f"{RELATIONS} --layer={layer}", f"--layer {layer}: the encoder", "has layers 1 to 2"
        )
        for layer in (0, -1, 3, HUGE)
    ),
    bad_usage("--layer top", f"{RELATIONS} --layer top", "invalid int value: 'top'"),
    *(
        bad_value(
            f"--sentence {number}", f"{command} --figure a.png --sentence={number}", f"--sentence {number}: ", "1 to 8"
        )
        for command in (GATES, CXMI, ENTROPY)
        for number in (0, -1, 9, HUGE)
    ),
    *(
        bad_value(f"--sentence {number}", f"{RELATIONS} --sentence={number}", f"--sentence {number}: ", "1 to 8")
        for number in (0, -1, 9)
    ),
    bad_usage(
        "a sentence that is not drawn", f"{GATES} --sentence 1", "--sentence would do nothing: it needs --figure"
    ),
    *(
        bad_file(
            "a stream that is not there",
            command,
            remove(f"data/test.{name}.*"),
            f"test.{name}.de-en.idx not found; run: ctxgates",
        )
        for command, name in ((CXMI, "preceding"), (ENTROPY, "preceding"), (RELATIONS, "relation"))
    ),
    *(
        edited(f"data/test.{name}.de-en.bin", command, "run: ctxgates")
        for command, name in ((CXMI, "preceding"), (RELATIONS, "relation"))
    ),
    bad_file(
        "a source that is cut", DECODING, cut("data/test.de-en.de.bin", -2), "data/test.de-en.de.bin is truncated"
    ),
    bad_file(
        "a target that is cut", DECODING, cut("data/test.de-en.en.bin", -2), "data/test.de-en.en.bin is truncated"
    ),
    bad_file("an index that is cut", DECODING, cut("data/test.de-en.en.idx", 30), "data/test.de-en.en.idx is damaged"),
    bad_file("no target", DECODING, remove("data/test.de-en.en.*"), "data/test.de-en.en.idx not found"),
    bad_file("an empty target", DECODING, write("data/test.de-en.en.bin", b""), "data/test.de-en.en.bin is empty"),
    bad_file(
        "no tables", DECODING, remove("data/pmi.*"), "data/pmi.bilingual.de-en.npz not found", "ctxgates gate-labels"
    ),
    bad_file(
        "tables that are cut",
        DECODING,
        cut("data/pmi.bilingual.de-en.npz", 2000),
        "data/pmi.bilingual.de-en.npz",
        "ctxgates gate-labels",
    ),
    bad_file(
        "empty tables",
        DECODING,
        write("data/pmi.monolingual.de-en.npz", b""),
        "data/pmi.monolingual.de-en.npz",
        "gate-labels",
    ),
    bad_file(
        "tables that are text",
        DECODING,
        copy("test.de", "data/pmi.monolingual.de-en.npz"),
        "data/pmi.monolingual.de-en.npz",
        "gate-labels",
    ),
    bad_file(
        "a table that is a folder", DECODING, folder("data/pmi.bilingual.de-en.npz"), "data/pmi.bilingual.de-en.npz"
    ),
)

# --- contrastive sets -------------------------------------------------------------------------------------------------

SET = {"1": {"src": ["q1", "q2"], "trg": [{"correct": ["z1", "z2"], "incorrect": ["z1", "z3"]}]}}
CONTRAPRO = [
    {
        "src segment": "q1",
        "ref segment": "z1",
        "src pronoun": "q1",
        "ref pronoun": "z1",
        "errors": [{"contrastive": "z2"}],
    }
]
CONTRASTIVE = f"{A} contrastive data --cpu --path models/isg.pt"
SETS = f"{CONTRASTIVE} --test-set set.json"
PLAIN = f"{CONTRASTIVE} --source test.de --reference test.en --contrastive wrong.en"


def contrastive_set(about: str, content: Any, *pieces: str, options: str = "") -> Any:
    if not isinstance(content, (str, bytes)):
        content = json.dumps(content)
    return bad_file(about, f"{SETS} {options}", write("set.json", content), "set.json", *pieces)


def lines(about: str, change: Change, *pieces: str) -> Any:
    return bad_file(about, PLAIN, several(copy("test.en", "wrong.en"), change), *pieces)


def entry(**changes: Any) -> Any:
    return [{**CONTRAPRO[0], **{name.replace("_", " "): value for name, value in changes.items()}}]


BEFORE = "--preceding one.de"
ONE = write("one.de", "q1\n")
CONTRASTIVE_SETS: Rows = (
    contrastive_set("an empty file", "", "line 1 is not JSON"),
    contrastive_set("half an object", '{"1": {', "line 1 is not JSON"),
    contrastive_set("no examples", {}, "holds no examples"),
    contrastive_set("a number", 7, "is neither ContraPro's list nor the object"),
    contrastive_set("deep JSON", "[" * 100_000, "JSON"),
    contrastive_set("JSON in Latin-1", b'{\n"\xfc": 1}', "line 2 is not UTF-8"),
    contrastive_set("JSON in UTF-16", json.dumps(SET).encode("utf-16"), "line 1 is not UTF-8"),
    contrastive_set("no translations", {"1": {"src": ["a", "b"]}}, "example 1 has no 'trg'"),
    contrastive_set("no source", {"1": {"trg": SET["1"]["trg"]}}, "example 1 has no 'src'"),
    contrastive_set("one source sentence", {"1": {**SET["1"], "src": ["a"]}}, "example 1 does not have the expected"),
    contrastive_set(
        "sources that are numbers", {"1": {**SET["1"], "src": [1, 2]}}, "example 1 does not have the expected"
    ),
    contrastive_set("an example that is a list", {"1": [1]}, "example 1 does not have the expected"),
    contrastive_set(
        "no wrong translation", {"1": {**SET["1"], "trg": [{"correct": ["a", "b"]}]}}, "example 1 has no 'incorrect'"
    ),
    contrastive_set("a preceding file too much", SET, "leave --preceding, --preceding-target and", options=BEFORE),
    bad_file(
        "an empty list", f"{SETS} {BEFORE}", several(ONE, write("set.json", "[]")), "one.de has 1 lines for 0 examples"
    ),
    contrastive_set("no preceding sentences", CONTRAPRO, "does not have the preceding sentences: give --documents"),
    bad_file(
        "a folder without subtitles",
        f"{SETS} --documents models",
        write("set.json", json.dumps(CONTRAPRO)),
        "--documents models: there is no */*.de",
    ),
    *(
        bad_file(
            f"entries of {about}",
            f"{SETS} {BEFORE}",
            several(ONE, write("set.json", json.dumps(content))),
            "set.json: entry 1",
            piece,
        )
        for about, content, piece in (
            ("numbers", [3], "does not have the expected form"),
            ("no reference", [{"src segment": "a"}], "has no 'ref segment'"),
            ("ctxpro", [{"rule": "er", "expected": "er", "segment id": 3}], "is one of ctxpro's, which scores"),
            ("no errors", [{**CONTRAPRO[0], "errors": None}], "does not have the expected form"),
            ("errors without text", entry(errors=[{}]), "has no 'contrastive'"),
            ("a source that is a number", entry(src_segment=7), "does not have the expected form (7 where a sentence"),
            ("a distance that is a word", entry(ante_distance="far"), "does not have the expected form"),
            (
                "no pronoun",
                [{name: value for name, value in CONTRAPRO[0].items() if name != "src pronoun"}],
                "has no 'src pronoun'",
            ),
        )
    ),
    bad_file(
        "preceding sentences of another set",
        f"{SETS} --preceding test.de",
        write("set.json", json.dumps(CONTRAPRO)),
        "test.de has 8 lines for 1 examples",
    ),
    bad_value("a set that is not there", SETS, "set.json cannot be read: No such file"),
    bad_value("a set that is a folder", f"{CONTRASTIVE} --test-set models", "models cannot be read: Is a directory"),
    bad_value("neither set nor text", CONTRASTIVE, "give --test-set, or plain text", "(--source is missing)"),
    bad_value("text without references", f"{CONTRASTIVE} --source test.de", "(--reference is missing)"),
    bad_usage("set and text", f"{SETS} --source test.de", "--source would do nothing: it needs plain text"),
    lines(
        "a wrong translation less",
        edit_lines("wrong.en", lambda lines: lines[1:]),
        "wrong.en has 7 sentences, test.de has 8",
    ),
    lines(
        "an empty wrong translation",
        edit_lines("wrong.en", lambda lines: ["", *lines[1:]]),
        "wrong.en: line 1 is empty",
    ),
    lines("an empty reference", edit_lines("test.en", lambda lines: ["", *lines[1:]]), "test.en: line 1 is empty"),
    lines("an empty source", edit_lines("test.de", lambda lines: ["", *lines[1:]]), "test.de: line 1 is empty"),
    lines("no lines", several(*(write(path, b"") for path in ("test.de", "test.en", "wrong.en"))), "test.de is empty"),
    lines("no wrong translations", remove("wrong.en"), "wrong.en not found: check the path"),
    lines("wrong translations in Latin-1", write("wrong.en", b"\xfc\n"), "wrong.en, line 1", "UTF-8"),
    lines(
        "a source that is too long",
        edit_lines("test.de", lambda lines: [*lines[:2], "q1 " * 2000, *lines[3:]]),
        "test.de: line 3: a source of 2001 tokens",
        "reads 1024",
    ),
    bad_usage("an unknown tokenizer", f"{PLAIN} --tokenizer 13a", "invalid choice: '13a'"),
    bad_value("subwords without codes", f"{PLAIN} --bpe subword_nmt", "--bpe subword_nmt needs --bpe-codes"),
    bad_file(
        "codes that are not there",
        f"{PLAIN} --bpe subword_nmt --bpe-codes nowhere",
        copy("test.en", "wrong.en"),
        "--bpe subword_nmt",
        "nowhere",
    ),
    bad_file(
        "a model of sentencepiece that is damaged",
        f"{PLAIN} --bpe sentencepiece --sentencepiece-model test.de",
        copy("test.en", "wrong.en"),
        "--bpe sentencepiece",
    ),
)

# --- sweep ------------------------------------------------------------------------------------------------------------

SWEEP = f"{A} sweep data --option dropout --save-dir saved --ref test.en --values"
SWEEPS: Rows = (
    bad_usage("no values", SWEEP, "--values: expected at least one argument"),
    bad_value("a value twice", f"{SWEEP} 0 0", "--values 0 0: a value is there twice"),
    bad_value("a value that is a path", f"{SWEEP} a/b", "'a/b' cannot name a folder"),
    bad_value("the baseline's name as a value", f"{SWEEP} baseline", "'baseline' cannot name a folder"),
    bad_value("a value with a colon", f"{SWEEP} 1:2", "'1:2' cannot name a folder"),
    bad_value("a folder with a colon", f"{SWEEP} 0 --save-dir sa:ved", "--save-dir sa:ved: fairseq-generate takes ':'"),
    bad_value("an empty value", f"{SWEEP} ''", "'' cannot name a folder"),
    bad_value("a run that is not there", f"{SWEEP} 0", "saved/dropout=0 not found: give --train to have it trained"),
    bad_file(
        "a run without a checkpoint",
        f"{SWEEP} 0",
        folder("saved/dropout=0"),
        "saved/dropout=0/checkpoint_best.pt not found",
    ),
    bad_value("runs below a file", f"{SWEEP} 0 --save-dir test.de/x", "test.de/x/dropout=0 not found"),
    bad_value(
        "trainings below a file", f"{SWEEP} 0 --save-dir test.de/x --train=--cpu", "test.de/x", "Not a directory"
    ),
    bad_value("a quotation that is not closed", f'{SWEEP} 0 --baseline "\'"', "No closing quotation"),
    bad_value("trainings that are not closed", f'{SWEEP} 0 --train "\'a"', "No closing quotation"),
    bad_value("another split", f"{SWEEP} 0 --gen-subset train", "test.en has 8 sentences, train of data has 16"),
    bad_value("a split that is not there", f"{SWEEP} 0 --gen-subset tset", "data has no split 'tset' of de-en"),
    bad_value("a reference that is not there", f"{SWEEP} 0 --ref a", "a not found: check the path"),
    bad_value("a directory that is not there", SWEEP.replace("data", "nowhere") + " 0", "nowhere is not a directory"),
    bad_value("two references of other lengths", f"{SWEEP} 0 --ref test.en train.en", "train.en has 16 sentences"),
    bad_file(
        "provenance that is damaged",
        f"{SWEEP} 0 --train=--cpu",
        several(folder("saved/dropout=0"), write("saved/dropout=0/train.log.json", "{")),
        "saved/dropout=0/train.log.json is damaged",
        "remove it",
    ),
    bad_file(
        "provenance that is a list",
        f"{SWEEP} 0 --train=--cpu",
        several(folder("saved/dropout=0"), write("saved/dropout=0/train.log.json", "[]")),
        "saved/dropout=0/train.log.json is damaged",
        "remove it",
    ),
    bad_file(
        "provenance without an end",
        f"{SWEEP} 0 --train=--cpu",
        several(
            folder("saved/dropout=0"),
            write("saved/dropout=0/train.log.json", '{"options": 3}'),
            write("saved/dropout=0/checkpoint_last.pt", ""),
        ),
        "saved/dropout=0 holds a model that this command did not train",
    ),
    bad_usage("resamples of nothing", f"{SWEEP} 0 --resamples 0", "is not an integer from 1"),
)

ANALYSES: Rows = (*TEXTS, *BUCKETS, *COHERENT, *MODELS, *CONTRASTIVE_SETS, *SWEEPS)

"""Bad inputs of fairseq's commands with the task ``context_translation``."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch

from tests.reliability.bad_inputs.row import (
    LENGTHS,
    NO_PARAMETERS,
    ROWS,
    TYPE,
    Change,
    Rows,
    append,
    bad_file,
    bad_usage,
    bad_value,
    copy,
    cut,
    edit,
    edit_json,
    edit_lines,
    folder,
    put,
    remove,
    save,
    several,
    swap_pointers,
    write,
)

SMOOTHED = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --share-all-embeddings --max-update 1"
TRAIN = f"fairseq-train data {SMOOTHED} --arch"
REGULARIZED = "--criterion gate_regularized_cross_entropy --load-gate-labels"
UNLABELLED = f"{TRAIN} rcg_transformer_tiny --criterion gate_regularized_cross_entropy"
GATED = f"{TRAIN} rcg_transformer_tiny {REGULARIZED}"
PLAIN, ISG, FRA, RNN = (
    f"{TRAIN} {arch}_tiny" for arch in ("transformer", "isg_transformer", "fra_transformer", "isg_rnnsearch")
)
CONTEXT = f"{TRAIN} context_transformer_tiny"
GENERATE = "fairseq-generate data --path models/"
VALIDATE = "fairseq-validate data --path models/"
INTERACTIVE = "fairseq-interactive data --input test.de --path models/"
OVERRIDES = "--model-overrides"
MISTYPED = f"{OVERRIDES} \"{{'dropuot': 0.1}}\""
ABLATION = f"{OVERRIDES} \"{{'inter_sentence_ablation': 'null'}}\""

# --- streams ----------------------------------------------------------------------------------------------------------

# The name of each stream in file names: a training that reads it, and the command that makes it.
STREAMS: Dict[str, Tuple[str, str]] = {
    "gate": (GATED, "run: ctxgates gate-labels data -s de -t en"),
    "preceding": (ISG, "run: ctxgates preceding-sentences data -s de -t en"),
    "relation": (FRA, "run: ctxgates relations data -s de -t en"),
}


def stream_rows(name: str, command: str, remedy: str) -> Rows:
    prefix = f"data/train.{name}.de-en"
    data, index, about = f"{prefix}.bin", f"{prefix}.idx", f"{prefix}.json"

    def damaged(what: str, change: Change, *pieces: str) -> Any:
        return bad_file(f"{name}: {what}", command, change, *(pieces or (prefix,)), remedy)

    return (
        damaged("no stream", remove(f"{prefix}.*"), f"{index} not found"),
        damaged("no index", remove(index), f"{index} not found"),
        damaged("no rows", remove(data), f"{data} not found"),
        damaged("no JSON", remove(about), f"{about} cannot be read"),
        damaged("an empty index", write(index, b""), f"{index} is not a memory-mapped index"),
        damaged("empty rows", write(data, b""), f"{data} is empty"),
        damaged("an empty JSON", write(about, b""), f"{about} cannot be read"),
        damaged("an index that is cut", cut(index, -3), f"{index} is damaged"),
        damaged("an index of its head alone", cut(index, 20), f"{index} is damaged"),
        damaged("rows that are cut", cut(data, -1), f"{data} is truncated"),
        damaged("rows that are longer", append(data, b"\0"), f"{data} is longer than its index says"),
        damaged("a JSON that is cut", cut(about, -10), f"{about} cannot be read"),
        damaged("rows of other bytes", put(data, 0, "B", 99)),
        damaged("an index that is text", copy("test.de", index), f"{index} is not a memory-mapped index"),
        damaged("an index of another type", put(index, TYPE, "B", 6), f"{index} is damaged"),
        damaged("an index of more rows", put(index, ROWS, "Q", 17), index),
        damaged("an index of other lengths", put(index, LENGTHS, "i", 9), index),
        damaged("an index of swapped rows", swap_pointers(index), f"{index} is damaged (its rows do not follow"),
        damaged("rows that are a folder", folder(data), f"{data} is a folder"),
        damaged("an index that is a folder", folder(index), f"{index} is a folder"),
        damaged("a JSON that is a folder", folder(about), f"{about} cannot be read"),
        damaged("the rows of another split", copy(f"data/valid.{name}.de-en.bin", data), data),
        damaged(
            "the stream of another split",
            several(*(copy(f"data/valid.{name}.de-en.{end}", f"{prefix}.{end}") for end in ("bin", "idx", "json"))),
            f"{data} was made for other data or dictionaries than data holds",
        ),
        *(
            damaged(f"a JSON that holds {content}", write(about, content), about)
            for content in ("[]", "3", "null", '"x"', "{", "{'rows': 16}", "NaN", "[" * 100_000)
        ),
        damaged("a JSON in Latin-1", write(about, b'{"\xfc": 1}'), f"{about} cannot be read"),
        damaged("a JSON in UTF-16", write(about, "{}".encode("utf-16")), f"{about} cannot be read"),
        damaged("a JSON of nothing", write(about, "{}")),
        damaged(
            "no digest",
            edit_json(about, lambda content: content.pop("digest") and None),
            "no digest",
            "earlier version",
        ),
        damaged(
            "a digest that is a number", edit_json(about, lambda content: content.update(digest=3)), "their digest"
        ),
        damaged("another digest", edit_json(about, lambda content: content.update(digest="0" * 32)), "their digest"),
        damaged("another number of rows", edit_json(about, lambda content: content.update(rows=9)), "their digest"),
        damaged("a key more", edit_json(about, lambda content: content.update(more=9))),
        damaged("no fingerprint", edit_json(about, lambda content: content.pop("fingerprint") and None), "other data"),
        damaged(
            "a fingerprint that is text",
            edit_json(about, lambda content: content.update(fingerprint="x")),
            "other data",
        ),
        bad_file(
            f"{name}: another dictionary",
            command,
            several(*(edit_lines(f"data/dict.{lang}.txt", lambda lines: lines[::-1]) for lang in ("de", "en"))),
            "was made for other data or dictionaries than data holds",
            remedy,
        ),
    )


# --- commands that need a stream, and options of streams --------------------------------------------------------------

TRANSLATION: Rows = (
    *(
        bad_file(
            f"{model}: no stream",
            f"{GENERATE}{model}.pt",
            remove(f"data/*.{stream}.*"),
            f"test.{stream}.de-en.idx not found; run: ctxgates",
        )
        for model, stream in (("isg", "preceding"), ("concatenated", "preceding"), ("fra", "relation"))
    ),
    bad_file(
        "no stream",
        f"{VALIDATE}fra.pt",
        remove("data/valid.relation.*"),
        "valid.relation.de-en.idx not found; run: ctxgates",
    ),
    *(
        bad_file(
            f"{model}: a stream that is cut",
            f"{GENERATE}{model}.pt",
            cut(f"data/test.{stream}.de-en.bin", -1),
            f"data/test.{stream}.de-en.bin",
            "run: ctxgates",
        )
        for model, stream in (("isg", "preceding"), ("concatenated", "preceding"), ("fra", "relation"))
    ),
    bad_file(
        "a source that is cut",
        f"{GENERATE}isg.pt",
        cut("data/test.de-en.de.bin", -1),
        "data/test.de-en.de.bin is truncated",
    ),
    bad_file(
        "a source that is cut",
        f"{VALIDATE}fra.pt",
        cut("data/valid.de-en.de.bin", -1),
        "data/valid.de-en.de.bin is truncated",
    ),
    *(
        bad_file(
            f"{about} that is {how}", command, cut("models/plain.pt", size), f"models/plain.pt is damaged ({reason}"
        )
        for how, size, reason in (("cut", -1, ""), ("empty", 0, "it is cut): name another checkpoint"))
        for about, command in (
            ("a model to translate with", f"{GENERATE}plain.pt"),
            ("a model to go on from", f"{PLAIN} --restore-file models/plain.pt"),
        )
    ),
    bad_value(
        "models of different inputs",
        f"{GENERATE}plain.pt:models/concatenated.pt",
        "--path: one model was trained with --concatenate-preceding",
    ),
    bad_value("a mistyped override", f"{INTERACTIVE}isg.pt {MISTYPED}", OVERRIDES, "nothing reads 'dropuot'"),
    bad_value("an ablation of nothing", f"{GENERATE}plain.pt {ABLATION}", OVERRIDES, "nothing reads"),
    bad_value("an ablation of what is off", f"{VALIDATE}gated.pt {ABLATION}", OVERRIDES, "would do nothing"),
    bad_value("relations for none", f"{INTERACTIVE}isg.pt --load-relations", "needs a model that reads them"),
    bad_value("a mask for none", f"{GENERATE}isg.pt --relation-mask word", "--relation-mask word would do nothing"),
    bad_value(
        "preceding sentences for none",
        f"{VALIDATE}plain.pt --load-preceding-sentences",
        "--load-preceding-sentences needs an architecture",
    ),
    *(
        bad_value(
            f"{command.split()[0]}: {option}",
            f"{command}isg.pt {option}",
            option.split()[0],
            "is for fairseq-train",
            "leave it out",
        )
        for command, option in ((GENERATE, "--preceding-max-length 9"), (INTERACTIVE, "--load-gate-labels"))
    ),
    bad_value(
        "an unknown separator",
        f"{GENERATE}concatenated.pt --concatenate-preceding nothing",
        "--concatenate-preceding nothing",
        "the source dictionary does not have this",
    ),
    bad_value(
        "a separator for a gate",
        f"{GENERATE}isg.pt --concatenate-preceding q1",
        "--concatenate-preceding is for architectures without a gate",
    ),
    bad_value(
        "an extractor of lines",
        f"{GENERATE}fra.pt --relation-extractor stanza",
        "--relation-extractor is for fairseq-interactive",
    ),
    bad_value(
        "an extractor for no relations",
        f"{INTERACTIVE}isg.pt --relation-extractor stanza",
        "--relation-extractor stanza needs a model that reads relations",
    ),
    bad_value(
        "an unknown extractor",
        f"{INTERACTIVE}fra.pt --relation-extractor openie",
        "'openie' is not a relation extractor",
    ),
    bad_value(
        "a server of no extractor",
        f"{INTERACTIVE}fra.pt --corenlp-url http://a:1",
        "--corenlp-url http://a:1",
        "give --relation-extractor",
    ),
    bad_usage("an unknown mask", f"{GENERATE}fra.pt --relation-mask wrod", "invalid choice: 'wrod'"),
)

# --- warm start -------------------------------------------------------------------------------------------------------


def start(about: str, change: Change, *pieces: str, options: str = "") -> Any:
    return bad_file(
        f"--warm-start: {about}", f"{ISG} --warm-start other.pt {options}", change, "--warm-start other.pt", *pieces
    )


WHOLE = copy("models/plain.pt", "other.pt")
IS_DAMAGED = "other.pt is damaged ("
WARM_STARTS: Rows = (
    start("no file", remove(), "no such file", "leave the option out when training is resumed"),
    start("a folder", folder("other.pt"), "is a folder"),
    start("an empty file", write("other.pt", b""), IS_DAMAGED),
    start("a file that is cut", several(WHOLE, cut("other.pt", 9000)), IS_DAMAGED),
    start("a file that lacks its last byte", several(WHOLE, cut("other.pt", -1)), IS_DAMAGED),
    start("a file of its head alone", several(WHOLE, cut("other.pt", 10)), "other.pt"),
    start("text", copy("test.de", "other.pt"), "other.pt"),
    start("zeros", write("other.pt", bytes(999))),
    start("a list", save("other.pt", [1, 2]), NO_PARAMETERS),
    start("a tensor", save("other.pt", torch.zeros(3)), NO_PARAMETERS),
    start("nothing", save("other.pt", {}), NO_PARAMETERS),
    start("no model", save("other.pt", {"args": None, "cfg": None}), NO_PARAMETERS),
    start("no parameters", save("other.pt", {"args": None, "model": {}}), "the checkpoint lacks "),
    start("numbers for parameters", save("other.pt", {"args": None, "model": {"weight": 3}}), NO_PARAMETERS),
    start("a list for parameters", save("other.pt", {"args": None, "model": [3]}), NO_PARAMETERS),
    start(
        "another model",
        copy("models/fra.pt", "other.pt"),
        "has parameters that the model does not have:",
        "relation",
        options="--decoder-layers 1",
    ),
    start(
        "a model of more layers", WHOLE, "that the model does not have: decoder.layers.1", options="--decoder-layers 1"
    ),
    start("a model of fewer layers", WHOLE, "lacks decoder.layers.2", options="--decoder-layers 3"),
    start("a model of another size", WHOLE, "has parameters of other shapes:", options="--decoder-ffn-embed-dim 32"),
    bad_value("--warm-start below a file", f"{ISG} --warm-start test.de/x", "--warm-start test.de/x: no such file"),
)

# --- options of training ----------------------------------------------------------------------------------------------


def layers(option: str, command: str, text: str) -> Any:
    return bad_value(f"{option} {text!r}", f"{command} {option}='{text}'", f"{option} {text}: ")


def number(option: str, command: str, *values: str) -> Rows:
    return tuple(bad_value(f"{option} {value}", f"{command} {option}={value}", f"{option} ") for value in values)


NOT_IN_TRAINING = "leaves some of its parameters without gradients"
TRAINING: Rows = (
    *(layers("--inter-sentence-layers", ISG, text) for text in ("3", "")),
    *(layers("--relation-layers", FRA, text) for text in ("0",)),
    *(layers("--regularized-layers", GATED, text) for text in (f"{10**30}",)),
    bad_value(
        "--inter-sentence-layers of RNNSearch",
        f"{RNN} --inter-sentence-layers 2",
        "--inter-sentence-layers 2",
        "1 to 1",
    ),
    *number("--gate-lambda", GATED, "nan"),
    *number("--relation-lambda", f"{FRA} --relation-fusion linear", "nan"),
    *number("--preceding-length-ratio", ISG, "nan"),
    *number("--preceding-max-length", ISG, "-1"),
    *number("--smoothing-window", f"{CONTEXT} --smoothing fcwm", "0"),
    *number("--smoothing-width", f"{CONTEXT} --smoothing ccwm", str(10**30)),
    bad_value(
        "no sentence is short enough",
        f"{ISG} --preceding-max-length 1 --preceding-length-ratio 1",
        "train: --preceding-length-ratio and --preceding-max-length leave no sentence",
    ),
    *(
        bad_value(f"would do nothing: {option}, {needs}", f"{command} {option}", option.split()[0], needs)
        for command, option, needs in (
            (CONTEXT, "--inter-sentence-layers 1", "needs --inter-sentence-gate, which --arch isg_transformer sets"),
            (CONTEXT, "--smoothing-words all", "needs --smoothing fcwm|ccwm, which --arch car_transformer sets"),
            (FRA, "--relation-lambda 0.2", "--relation-fusion linear"),
            (PLAIN, "--load-relations", "--arch fra_transformer"),
            (PLAIN, "--preceding-max-length 9", "--concatenate-preceding"),
            (FRA, "--corenlp-url http://a:1", "--relation-extractor"),
            (f"{FRA} --relation-ablation compare", "--relation-mask word", "reads no relations"),
            (f"{FRA} --relation-ablation compare", "--load-relations", "no --relation-ablation compare"),
        )
    ),
    bad_value(
        "labels without the regularizer",
        f"{TRAIN} rcg_transformer_tiny --load-gate-labels",
        "--load-gate-labels would do nothing with --criterion label_smoothed_cross_entropy",
        "--criterion gate_regularized_cross_entropy",
    ),
    bad_value(
        "the regularizer without gates",
        f"{PLAIN} {REGULARIZED}",
        "needs an architecture with context gates",
        "--arch rcg_transformer",
    ),
    bad_value(
        "the regularizer without labels",
        UNLABELLED,
        "--gate-lambda above 0 needs labels",
        "--load-gate-labels",
    ),
    bad_value(
        "a reduction without labels",
        f"{UNLABELLED} --gate-lambda 0 --gate-layer-reduction mean",
        "--gate-layer-reduction does nothing without labels",
    ),
    bad_value("the ablation closed", f"{ISG} --inter-sentence-ablation closed", NOT_IN_TRAINING, "--model-overrides"),
    bad_value(
        "layers that are renumbered",
        f"{FRA} --decoder-layers 4 --decoder-layers-to-keep 0,3",
        "--decoder-layers-to-keep renumbers the layers",
    ),
    bad_value(
        "relations and concatenation",
        f"{FRA} --concatenate-preceding '</s>'",
        "--concatenate-preceding cannot be combined with the stream 'relation'",
    ),
    bad_value(
        "an unknown separator",
        f"{PLAIN} --concatenate-preceding nothing",
        "--concatenate-preceding nothing: the source dictionary does not",
    ),
    bad_file(
        "an unknown separator of translations",
        f"{PLAIN} --concatenate-preceding q1 --concatenate-preceding-target".replace("--share-all-embeddings", ""),
        edit("data/dict.en.txt", lambda words: words.replace(b"q1 ", b"q99 ")),
        "--concatenate-preceding q1: the target dictionary does not",
    ),
    bad_file(
        "preceding translations without the order of documents",
        f"{PLAIN} --concatenate-preceding '</s>' --concatenate-preceding-target",
        remove("data/train.preceding.de-en.*"),
        "data/train.preceding.de-en.idx not found",
        STREAMS["preceding"][1],
    ),
    bad_value(
        "preceding translations without a separator",
        f"{PLAIN} --concatenate-preceding-target",
        "--concatenate-preceding-target needs --concatenate-preceding, with the separator",
    ),
    bad_value(
        "resumed with a separator",
        f"{PLAIN} --restore-file models/plain.pt --concatenate-preceding '</s>'",
        "--concatenate-preceding </s>: the checkpoint was trained without it",
    ),
    bad_value(
        "resumed with another separator",
        f"{PLAIN} --restore-file models/concatenated.pt --concatenate-preceding q1",
        "--concatenate-preceding q1: the checkpoint was trained with --concatenate-preceding </s>",
    ),
    *(
        bad_usage(f"unknown {option}", f"{CONTEXT} {option} none_of_these", option, "invalid choice: 'none_of_these'")
        for option in ("--relation-fusion", "--smoothing")
    ),
    *(
        bad_usage(f"a word for {option}", f"{command} {option} few", option, "invalid", "'few'")
        for command, option in (
            (GATED, "--gate-lambda"),
            (ISG, "--preceding-max-length"),
        )
    ),
)

FAIRSEQ_COMMANDS: Rows = (
    *stream_rows("gate", *STREAMS["gate"]),
    *stream_rows("preceding", *STREAMS["preceding"])[::2],
    *stream_rows("relation", *STREAMS["relation"])[1::2],
    *TRANSLATION,
    *WARM_STARTS,
    *TRAINING,
)

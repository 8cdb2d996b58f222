"""The models of the quick start: what each is trained with, and the side streams it reads.

A further model is one entry of ``MODELS``. A stream that no model has read before is also an entry of ``STREAMS``.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

# The test sets in the order of fairseq-preprocess --testpref, which names them test, test1, test2, ...
TEST_SETS = (
    "test",
    "probe-preceding",
    "probe-distant",
    "probe-address",
    "probe-relations",
    "probe-collocation",
    "probe-unknown",
)
PROBES = {name: f"test{index}" for index, name in enumerate(TEST_SETS) if name.startswith("probe-")}
# The split of the data directory, and the name of its files in the corpus.
SPLITS = [("train", "train"), ("valid", "valid"), ("test", "test"), *((split, name) for name, split in PROBES.items())]


def files_by_split(extension: str) -> str:
    """A file of the corpus for each split, in the form ``SPLIT=FILE`` of the preprocessing commands."""
    return " ".join(f"{split}=corpus/{name}.{extension}" for split, name in SPLITS)


LANGUAGES = "--source-lang en --target-lang de"
STREAMS = {
    "gate labels": f"ctxgates gate-labels data-bin {LANGUAGES}",
    "preceding sentences": f"ctxgates preceding-sentences data-bin {LANGUAGES} --documents {files_by_split('docids')}",
    "relations": f"ctxgates relations data-bin {LANGUAGES} --extractor jsonl "
    f"--relations {files_by_split('tuples.jsonl')}",
}

PLAIN_LOSS = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1"
GATE_LOSS = "--criterion gate_regularized_cross_entropy --label-smoothing 0.1 --gate-lambda 1.0"
TRANSFORMER = (
    "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 64 --decoder-embed-dim 64 "
    "--encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128 --encoder-attention-heads 4 --decoder-attention-heads 4 "
    "--lr 5e-3 --warmup-updates 100"
)
RNNSEARCH = "--encoder-embed-dim 64 --encoder-hidden-size 128 --lr 3e-3 --warmup-updates 200"
TRAINING = (
    "--share-decoder-input-output-embed --dropout 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' "
    "--lr-scheduler inverse_sqrt --batch-size 64 --seed 1 --cpu --num-workers 0 --data-buffer-size 0 "
    "--validate-interval 5 --save-interval 5 --no-epoch-checkpoints --log-format json --log-interval 20"
)


class Model(NamedTuple):
    """A model, which is a row of the table.

    Attributes:
        name: its name in the table
        options: options of ``fairseq-train``, in addition to ``size`` and ``TRAINING``
        streams: the streams that the model reads, as named in ``STREAMS``
        has_gates: whether its context gates are analysed
        ablations: the name and ``--model-overrides`` of each ablation, which is a further row for the same checkpoint
        size: options for the numbers of layers and dimensions, and the learning rate that goes with them
        updates: the number of updates for which it is trained
    """

    name: str
    options: str
    streams: Tuple[str, ...] = ()
    has_gates: bool = False
    ablations: Tuple[Tuple[str, str], ...] = ()
    size: str = TRANSFORMER
    updates: int = 600

    @property
    def needs(self) -> Tuple[str, ...]:
        """The streams that its training and its analyses read: gates are compared with their labels."""
        return tuple(dict.fromkeys([*self.streams, *(["gate labels"] if self.has_gates else [])]))


MODELS = (
    Model("transformer", f"--task translation --arch transformer {PLAIN_LOSS}"),
    Model("context gates", f"--task context_translation --arch rcg_transformer {PLAIN_LOSS}", has_gates=True),
    Model(
        "regularized gates",
        f"--task context_translation --load-gate-labels --arch rcg_transformer {GATE_LOSS}",
        streams=("gate labels",),
        has_gates=True,
    ),
    Model(
        "inter-sentence gate",
        f"--task context_translation --load-preceding-sentences --arch isg_transformer {PLAIN_LOSS}",
        streams=("preceding sentences",),
        ablations=(("preceding is NULL", "{'inter_sentence_ablation': 'null'}"),),
    ),
    Model(
        "two preceding sentences",
        "--task context_translation --load-preceding-sentences --arch isg_transformer --inter-sentence-context 2 "
        f"{PLAIN_LOSS}",
        streams=("preceding sentences",),
    ),
    Model(
        "preceding translation",
        "--task context_translation --arch transformer --concatenate-preceding '</s>' --concatenate-preceding-target "
        f"{PLAIN_LOSS}",
        streams=("preceding sentences",),
    ),
    Model(
        "relations",
        f"--task context_translation --load-relations --arch fra_transformer {PLAIN_LOSS}",
        streams=("relations",),
        updates=800,
    ),
    Model(
        "Compare Fusion",
        f"--task context_translation --arch fra_transformer --relation-ablation compare {PLAIN_LOSS}",
        updates=800,
    ),
    Model("smoothing", f"--task context_translation --arch car_transformer {PLAIN_LOSS}"),
    Model(
        "RNNSearch, inter-sentence gate",
        f"--task context_translation --load-preceding-sentences --arch isg_rnnsearch {PLAIN_LOSS}",
        streams=("preceding sentences",),
        size=RNNSEARCH,
        updates=1200,
    ),
)

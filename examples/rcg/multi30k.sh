#!/usr/bin/env bash
# Multi30k German-English: a plain model, context gates, regularized context gates; the same budget for all.
#     examples/rcg/multi30k.sh TEXT_FOLDER [WORK_FOLDER]
# TEXT_FOLDER holds {train,valid,test}.{de,en} (or .gz), tokenised. From the environment: SYSTEMS, the names of those below
# (default: the three on the Transformer), EPOCHS, SEED, EXTRA (more fairseq-train options, such as --cpu or --fp16) and
# DECODING (the same for fairseq-generate). Existing files are not made again.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
text=$1 work=${2:-multi30k} source=de target=en
read -ra systems <<<"${SYSTEMS:-transformer context_gates regularized_context_gates}"
. "$(dirname "$0")/../functions.sh"

if [ ! -e "$work/data-bin/dict.en.txt" ]; then
    copy_text {train,valid,test}.{de,en}
    binarize_bpe 8000 ""
fi
[ -e "$work/data-bin/train.gate.de-en.json" ] || ctxgates gate-labels "$work/data-bin" -s de -t en

options="--share-all-embeddings --adam-betas (0.9,0.98) --lr 2e-3 --warmup-updates 1000 --dropout 0.3 --max-tokens 4096
    --max-epoch ${EPOCHS:-10}"
gated="--task context_translation --load-gate-labels --criterion gate_regularized_cross_entropy"
size="--encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256 --encoder-ffn-embed-dim 512
    --decoder-ffn-embed-dim 512 --encoder-attention-heads 4 --decoder-attention-heads 4"
train transformer --arch transformer $size $options
train context_gates --arch rcg_transformer $size $options $gated --gate-lambda 0
train regularized_context_gates --arch rcg_transformer $size $options $gated --gate-lambda 1.0
# The gates of Tu et al. 2017, and the same regularizer on them.
size="--encoder-embed-dim 256 --encoder-hidden-size 256"
train rnnsearch --task context_translation --arch rnnsearch $size $options
train rnnsearch_context_gates --arch ctxgate_rnnsearch $size $options $gated --gate-lambda 0
train rnnsearch_regularized_context_gates --arch ctxgate_rnnsearch $size $options $gated --gate-lambda 1.0
compare_systems --beam 4
for name in "${systems[@]}"; do
    [[ $name == *context_gates ]] || continue
    ctxgates analyze gates "$work/data-bin" -s de -t en --path "$work/$name/checkpoint_best.pt" --gen-subset valid \
        --max-tokens 4096 --sentence 7 --figure "$work/$name/gates.png" --json "$work/$name/gates.json"
done

#!/usr/bin/env bash
# Multi30k German-English: a plain model, context gates, regularized context gates; the same budget for all.
#     examples/rcg/multi30k.sh TEXT_FOLDER [WORK_FOLDER]
# TEXT_FOLDER holds {train,valid,test}.{de,en} (or .gz), tokenised. From the environment: SYSTEMS, the names of those below
# (default: the three on the Transformer), EPOCHS, SEED, EXTRA (more fairseq-train options, such as --cpu or --fp16) and
# DECODING (the same for fairseq-generate). What is there already is not made again.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
text=$1 work=${2:-multi30k} seed=${SEED:-1}
read -ra systems <<<"${SYSTEMS:-transformer context_gates regularized_context_gates}"
user_dir=$(ctxgates user-dir)
mkdir -p "$work"

if [ ! -e "$work/data-bin/dict.en.txt" ]; then
    for split in train valid test; do
        for lang in de en; do
            file=$text/$split.$lang
            if [ -e "$file" ]; then cat "$file"; else gzip -dc "$file.gz"; fi >"$work/$split.$lang"
        done
    done
    subword-nmt learn-joint-bpe-and-vocab --input "$work/train.de" "$work/train.en" -s 8000 -o "$work/codes" \
        --write-vocabulary "$work/vocab.de" "$work/vocab.en"
    for split in train valid test; do
        for lang in de en; do
            subword-nmt apply-bpe -c "$work/codes" --vocabulary "$work/vocab.$lang" --vocabulary-threshold 1 \
                <"$work/$split.$lang" >"$work/$split.bpe.$lang"
        done
    done
    fairseq-preprocess --source-lang de --target-lang en --joined-dictionary --destdir "$work/data-bin" \
        --trainpref "$work/train.bpe" --validpref "$work/valid.bpe" --testpref "$work/test.bpe"
fi
[ -e "$work/data-bin/train.gate.de-en.json" ] || ctxgates gate-labels "$work/data-bin" -s de -t en

train() { # NAME OPTIONS...
    local name=$1
    shift
    [[ " ${systems[*]} " == *" $name "* ]] || return 0
    [ -e "$work/$name/done" ] || fairseq-train "$work/data-bin" -s de -t en --user-dir "$user_dir" \
        --share-all-embeddings --optimizer adam --adam-betas '(0.9, 0.98)' --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 1000 \
        --dropout 0.3 --label-smoothing 0.1 --max-tokens 4096 --max-epoch "${EPOCHS:-10}" --seed "$seed" \
        --no-epoch-checkpoints --save-dir "$work/$name" "$@" ${EXTRA:-}
    touch "$work/$name/done" # an interrupted training goes on where it stopped
}
plain="--criterion label_smoothed_cross_entropy"
gated="--task context_translation --load-gate-labels --criterion gate_regularized_cross_entropy"
size="--encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256 --encoder-ffn-embed-dim 512
    --decoder-ffn-embed-dim 512 --encoder-attention-heads 4 --decoder-attention-heads 4"
train transformer --arch transformer $size $plain
train context_gates --arch rcg_transformer $size $gated --gate-lambda 0
train regularized_context_gates --arch rcg_transformer $size $gated --gate-lambda 1.0
# The gates of Tu et al. 2017, and the same regularizer on them.
size="--encoder-embed-dim 256 --encoder-hidden-size 256"
train rnnsearch --task context_translation --arch rnnsearch $size $plain
train rnnsearch_context_gates --arch ctxgate_rnnsearch $size $gated --gate-lambda 0
train rnnsearch_regularized_context_gates --arch ctxgate_rnnsearch $size $gated --gate-lambda 1.0

for name in "${systems[@]}"; do
    fairseq-generate "$work/data-bin" -s de -t en --user-dir "$user_dir" --task context_translation \
        --path "$work/$name/checkpoint_best.pt" --beam 4 --remove-bpe --max-tokens 4096 ${DECODING:-} \
        >"$work/$name/test.out"
    grep '^D-' "$work/$name/test.out" | sort -t- -k2 -n | cut -f3 >"$work/$name/test.hyp"
done
# The text is tokenised already, so BLEU counts its tokens as they are.
hypotheses=("${systems[@]/#/$work/}")
sacrebleu "$work/test.en" -i "${hypotheses[@]/%//test.hyp}" --metrics bleu --tokenize none ${systems[1]:+--paired-bs}
for name in "${systems[@]}"; do
    [[ $name == *context_gates ]] || continue
    ctxgates analyze gates "$work/data-bin" -s de -t en --path "$work/$name/checkpoint_best.pt" --gen-subset valid \
        --max-tokens 4096 --sentence 7 --figure "$work/$name/gates.png" --json "$work/$name/gates.json"
done

#!/usr/bin/env bash
# Multi30k German-English: transformer, context gates, regularized context gates; the same budget for all.
#     examples/rcg/multi30k.sh TEXT_FOLDER [WORK_FOLDER]
# TEXT_FOLDER holds {train,valid,test}.{de,en} (or .gz), tokenised. EPOCHS, SEED and EXTRA (more fairseq-train options,
# such as --cpu or --fp16) come from the environment. What is there already is not made again.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
text=$1 work=${2:-multi30k} seed=${SEED:-1}
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

train() { # NAME OPTIONS...: 3 layers, 256 wide, 512 feed-forward, 4 heads
    local name=$1
    shift
    [ -e "$work/$name/checkpoint_best.pt" ] || fairseq-train "$work/data-bin" -s de -t en --user-dir "$user_dir" \
        --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256 \
        --encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512 \
        --encoder-attention-heads 4 --decoder-attention-heads 4 --share-all-embeddings \
        --optimizer adam --adam-betas '(0.9, 0.98)' --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 1000 \
        --dropout 0.3 --label-smoothing 0.1 --max-tokens 4096 --max-epoch "${EPOCHS:-10}" --seed "$seed" \
        --no-epoch-checkpoints --save-dir "$work/$name" "$@" ${EXTRA:-}
}
gated="--task context_translation --load-gate-labels --arch rcg_transformer --criterion gate_regularized_cross_entropy"
train transformer --arch transformer --criterion label_smoothed_cross_entropy
train context_gates $gated --gate-lambda 0
train regularized_context_gates $gated --gate-lambda 1.0

for name in transformer context_gates regularized_context_gates; do
    fairseq-generate "$work/data-bin" -s de -t en --user-dir "$user_dir" --task context_translation \
        --path "$work/$name/checkpoint_best.pt" --beam 4 --remove-bpe --max-tokens 4096 >"$work/$name/test.out"
    grep '^D-' "$work/$name/test.out" | sort -t- -k2 -n | cut -f3 >"$work/$name/test.hyp"
done
# The text is tokenised already, so BLEU counts its tokens as they are.
sacrebleu "$work/test.en" -i "$work"/{transformer,context_gates,regularized_context_gates}/test.hyp \
    --metrics bleu --tokenize none --paired-bs
for name in context_gates regularized_context_gates; do
    ctxgates analyze gates "$work/data-bin" -s de -t en --path "$work/$name/checkpoint_best.pt" --gen-subset valid \
        --max-tokens 4096 --sentence 7 --figure "$work/$name/gates.png" --json "$work/$name/gates.json"
done

#!/usr/bin/env bash
# TED talks, Europarl debates and news, English-German, in document order: transformer, concatenation and the
# inter-sentence gate, each trained on from the same transformer, for the same number of epochs; then the ablations.
#     examples/isg/documents.sh TEXT_FOLDER [WORK_FOLDER]
# TEXT_FOLDER holds {train,valid,test}.{en,de,docids} (or .gz), not tokenised. BASELINE_EPOCHS, EPOCHS, SEED, EXTRA (more
# fairseq-train options, such as --cpu or --fp16) and DECODING (more fairseq-generate options) come from the environment.
# What is there already is not made again. Needs sacremoses (pip install sacremoses).
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,8s/^# //p' "$0" >&2; exit 2; }
text=$1 work=${2:-documents} seed=${SEED:-1} epochs=${EPOCHS:-5}
user_dir=$(ctxgates user-dir)
mkdir -p "$work"

if [ ! -e "$work/data-bin/dict.de.txt" ]; then
    for split in train valid test; do
        for kind in en de docids; do
            file=$text/$split.$kind
            if [ -e "$file" ]; then cat "$file"; else gzip -dc "$file.gz"; fi >"$work/$split.$kind"
        done
        for lang in en de; do
            sacremoses -l "$lang" tokenize -x <"$work/$split.$lang" >"$work/$split.tok.$lang"
        done
    done
    subword-nmt learn-joint-bpe-and-vocab --input "$work/train.tok.en" "$work/train.tok.de" -s 16000 \
        -o "$work/codes" --write-vocabulary "$work/vocab.en" "$work/vocab.de"
    for split in train valid test; do
        for lang in en de; do
            subword-nmt apply-bpe -c "$work/codes" --vocabulary "$work/vocab.$lang" --vocabulary-threshold 1 \
                <"$work/$split.tok.$lang" >"$work/$split.bpe.$lang"
        done
    done
    fairseq-preprocess --source-lang en --target-lang de --joined-dictionary --destdir "$work/data-bin" \
        --trainpref "$work/train.bpe" --validpref "$work/valid.bpe" --testpref "$work/test.bpe"
fi
[ -e "$work/data-bin/train.preceding.en-de.json" ] || ctxgates preceding-sentences "$work/data-bin" -s en -t de \
    --documents train="$work/train.docids" valid="$work/valid.docids" test="$work/test.docids"

train() { # NAME OPTIONS...: 3 layers, 128 wide, 512 feed-forward, 4 heads
    local name=$1
    shift
    [ -e "$work/$name/done" ] || fairseq-train "$work/data-bin" -s en -t de --user-dir "$user_dir" \
        --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 128 --decoder-embed-dim 128 \
        --encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512 \
        --encoder-attention-heads 4 --decoder-attention-heads 4 --share-all-embeddings \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --dropout 0.2 \
        --optimizer adam --adam-betas '(0.9, 0.98)' --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 400 \
        --max-epoch "$epochs" --seed "$seed" --no-epoch-checkpoints --save-dir "$work/$name" \
        "$@" ${EXTRA:-}
    touch "$work/$name/done" # an interrupted training goes on where it stopped
}
train baseline --arch transformer --max-tokens 2048 --max-epoch "${BASELINE_EPOCHS:-10}"
# As many sentences a batch for all, so that all make the same number of updates.
warm="--task context_translation --warm-start $work/baseline/checkpoint_best.pt --batch-size 64"
train transformer $warm --arch context_transformer
train concatenation $warm --arch context_transformer --concatenate-preceding '</s>'
train isg $warm --load-preceding-sentences --arch isg_transformer

translate() { # NAME MODEL OPTIONS...
    local name=$1 model=$2
    shift 2
    [ -e "$work/$name.hyp" ] || {
        fairseq-generate "$work/data-bin" -s en -t de --user-dir "$user_dir" --task context_translation \
            --path "$work/$model/checkpoint_best.pt" --beam 4 --remove-bpe --max-tokens 8192 "$@" ${DECODING:-} \
            >"$work/$name.out"
        grep '^D-' "$work/$name.out" | sort -t- -k2 -n | cut -f3 | sacremoses -l de detokenize >"$work/$name.hyp.part"
        mv "$work/$name.hyp.part" "$work/$name.hyp"
    }
}
translate transformer transformer
translate concatenation concatenation
translate isg isg
for ablation in null closed random; do
    translate "isg-$ablation" isg --model-overrides "{'inter_sentence_ablation': '$ablation'}"
done
sacrebleu "$work/test.de" -i "$work"/{transformer,concatenation,isg,isg-null,isg-closed,isg-random}.hyp \
    --metrics bleu --paired-bs

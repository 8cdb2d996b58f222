#!/usr/bin/env bash
# TED talks, Europarl debates and news, English-German, in document order: transformer, concatenation and the
# inter-sentence gate, each trained on from the same transformer, for the same number of epochs; then the ablations.
#     examples/isg/documents.sh TEXT_FOLDER [WORK_FOLDER]
# TEXT_FOLDER holds {train,valid,test}.{en,de,docids} (or .gz), not tokenised. BASELINE_EPOCHS, EPOCHS, SEED, EXTRA (more
# fairseq-train options, such as --cpu or --fp16) and DECODING (more fairseq-generate options) come from the environment.
# Existing files are not made again. Needs sacremoses (pip install sacremoses).
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,8s/^# //p' "$0" >&2; exit 2; }
text=$1 work=${2:-documents} source=en target=de
systems=(baseline transformer concatenation isg)
. "$(dirname "$0")/../functions.sh"

if [ ! -e "$work/data-bin/dict.de.txt" ]; then
    copy_text {train,valid,test}.{en,de,docids}
    for name in {train,valid,test}.{en,de}; do
        sacremoses -l "${name#*.}" tokenize -x <"$work/$name" >"$work/${name%.*}.tok.${name#*.}"
    done
    binarize_bpe 16000 .tok
fi
[ -e "$work/data-bin/train.preceding.en-de.json" ] || ctxgates preceding-sentences "$work/data-bin" -s en -t de \
    --documents train="$work/train.docids" valid="$work/valid.docids" test="$work/test.docids"

options="--share-all-embeddings --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 128 --decoder-embed-dim 128
    --encoder-ffn-embed-dim 512 --decoder-ffn-embed-dim 512 --encoder-attention-heads 4 --decoder-attention-heads 4
    --dropout 0.2 --adam-betas (0.9,0.98) --lr 2e-3 --warmup-updates 400"
train baseline --arch transformer --max-tokens 2048 --max-epoch "${BASELINE_EPOCHS:-10}" $options
# As many sentences a batch for all, so that all make the same number of updates.
warm="--task context_translation --warm-start $work/baseline/checkpoint_best.pt --batch-size 64 --max-epoch ${EPOCHS:-5}"
train transformer $warm --arch context_transformer $options
train concatenation $warm --arch context_transformer --concatenate-preceding '</s>' $options
train isg $warm --load-preceding-sentences --arch isg_transformer $options

for name in transformer concatenation isg; do
    translate "$name" "$name" --beam 4
done
for ablation in null closed random; do
    translate isg "isg-$ablation" --beam 4 --model-overrides "{'inter_sentence_ablation': '$ablation'}"
done
for name in transformer concatenation isg isg-null isg-closed isg-random; do
    sacremoses -l de detokenize <"$work/$name.hyp" >"$work/$name.de"
done
ctxgates analyze compare --ref "$work/test.de" \
    --sys "$work"/{transformer,concatenation,isg,isg-null,isg-closed,isg-random}.de

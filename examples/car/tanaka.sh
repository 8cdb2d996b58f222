#!/usr/bin/env bash
# Tanaka corpus, Japanese-English, by words, with a vocabulary so small that some are unknown: RNNSearch, with it the eight
# systems of Chen et al. 2017, and two that add the vectors of all words to their embeddings; the same budget for all.
#     examples/car/tanaka.sh TEXT_FOLDER [WORK_FOLDER]
# TEXT_FOLDER holds {train,valid}.{ja,en} (or .gz), tokenised; the last TEST lines of train are the test set. From the
# environment: VOCABULARY (words a language), EMBED and HIDDEN (widths), TEST, EPOCHS, SEED, SYSTEMS (names, of those below),
# EXTRA (more fairseq-train options, such as --cpu or --fp16), DECODING (the same for fairseq-generate). Existing
# files are not made again.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# //p' "$0" >&2; exit 2; }
text=$1 work=${2:-tanaka} source=ja target=en
vocabulary=${VOCABULARY:-4000} test=${TEST:-2000}
read -ra systems <<<"${SYSTEMS:-rnnsearch fcwm-encoder fcwm-decoder fcwm-both fcwm-all-replace fcwm-all-add \
ccwm-encoder ccwm-decoder ccwm-both ccwm-all-replace ccwm-all-add}"
. "$(dirname "$0")/../functions.sh"

if [ ! -e "$work/data-bin/dict.en.txt" ]; then
    copy_text {train,valid}.{ja,en}
    for lang in ja en; do
        mv "$work/train.$lang" "$work/all.$lang"
        head -n "$(($(wc -l <"$work/all.$lang") - test))" "$work/all.$lang" >"$work/train.$lang"
        tail -n "$test" "$work/all.$lang" >"$work/test.$lang"
    done
    fairseq-preprocess --source-lang ja --target-lang en --nwordssrc "$vocabulary" --nwordstgt "$vocabulary" \
        --trainpref "$work/train" --validpref "$work/valid" --testpref "$work/test" --destdir "$work/data-bin"
fi

options="--task context_translation --encoder-embed-dim ${EMBED:-256} --encoder-hidden-size ${HIDDEN:-256} --dropout 0.2
    --lr 1e-3 --warmup-updates 500 --clip-norm 1.0 --batch-size 80 --max-epoch ${EPOCHS:-10}"
train rnnsearch --arch rnnsearch $options
for model in fcwm ccwm; do
    smoothing="--arch car_rnnsearch --smoothing $model"
    for network in encoder decoder both; do
        train "$model-$network" $smoothing --smoothing-side "$network" --smoothing-words unknown $options
    done
    for combine in replace add; do
        train "$model-all-$combine" $smoothing --smoothing-side both --smoothing-words all \
            --smoothing-combine "$combine" $options
    done
done
compare_systems --beam 4
ctxgates analyze bleu-by-unknowns "$work/data-bin" -s ja -t en "${scored[@]}" --buckets 0,1

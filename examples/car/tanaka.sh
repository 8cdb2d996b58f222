#!/usr/bin/env bash
# Tanaka corpus, Japanese-English, by words, with a vocabulary so small that some are unknown: RNNSearch, and with it the
# eight systems of Chen et al. 2017; the same budget for all.
#     examples/car/tanaka.sh TEXT_FOLDER [WORK_FOLDER]
# TEXT_FOLDER holds {train,valid}.{ja,en} (or .gz), tokenised; the last TEST lines of train are the test set. From the
# environment: VOCABULARY (words a side), EMBED and HIDDEN (widths), TEST, EPOCHS, SEED, SYSTEMS (names, of those below),
# EXTRA (more fairseq-train options, such as --cpu or --fp16), DECODING (the same for fairseq-generate). What is there
# already is not made again.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# //p' "$0" >&2; exit 2; }
text=$1 work=${2:-tanaka} seed=${SEED:-1} epochs=${EPOCHS:-10} vocabulary=${VOCABULARY:-4000} test=${TEST:-2000}
embed=${EMBED:-256} hidden=${HIDDEN:-256}
read -ra systems <<<"${SYSTEMS:-rnnsearch fcwm-encoder fcwm-decoder fcwm-both fcwm-all \
ccwm-encoder ccwm-decoder ccwm-both ccwm-all}"
user_dir=$(ctxgates user-dir)
mkdir -p "$work"

if [ ! -e "$work/data-bin/dict.en.txt" ]; then
    for lang in ja en; do
        for split in train valid; do
            file=$text/$split.$lang
            if [ -e "$file" ]; then cat "$file"; else gzip -dc "$file.gz"; fi >"$work/$split.all.$lang"
        done
        head -n "$(($(wc -l <"$work/train.all.$lang") - test))" "$work/train.all.$lang" >"$work/train.$lang"
        tail -n "$test" "$work/train.all.$lang" >"$work/test.$lang"
        mv "$work/valid.all.$lang" "$work/valid.$lang"
    done
    fairseq-preprocess --source-lang ja --target-lang en --nwordssrc "$vocabulary" --nwordstgt "$vocabulary" \
        --trainpref "$work/train" --validpref "$work/valid" --testpref "$work/test" --destdir "$work/data-bin"
fi

train() { # NAME OPTIONS...
    local name=$1
    shift
    [[ " ${systems[*]} " == *" $name "* ]] || return 0
    [ -e "$work/$name/done" ] || fairseq-train "$work/data-bin" -s ja -t en --user-dir "$user_dir" \
        --task context_translation --encoder-embed-dim "$embed" --encoder-hidden-size "$hidden" --dropout 0.2 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --optimizer adam --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 500 --clip-norm 1.0 \
        --batch-size 80 --max-epoch "$epochs" --seed "$seed" --no-epoch-checkpoints --save-dir "$work/$name" \
        "$@" ${EXTRA:-}
    touch "$work/$name/done" # an interrupted training goes on where it stopped
}
train rnnsearch --arch rnnsearch
train fcwm-encoder --arch car_rnnsearch --smoothing fcwm --smoothing-side encoder --smoothing-words unknown
train fcwm-decoder --arch car_rnnsearch --smoothing fcwm --smoothing-side decoder --smoothing-words unknown
train fcwm-both --arch car_rnnsearch --smoothing fcwm --smoothing-side both --smoothing-words unknown
train fcwm-all --arch car_rnnsearch --smoothing fcwm --smoothing-side both --smoothing-words all
train ccwm-encoder --arch car_rnnsearch --smoothing ccwm --smoothing-side encoder --smoothing-words unknown
train ccwm-decoder --arch car_rnnsearch --smoothing ccwm --smoothing-side decoder --smoothing-words unknown
train ccwm-both --arch car_rnnsearch --smoothing ccwm --smoothing-side both --smoothing-words unknown
train ccwm-all --arch car_rnnsearch --smoothing ccwm --smoothing-side both --smoothing-words all

for name in "${systems[@]}"; do
    [ -e "$work/$name/test.hyp" ] || {
        fairseq-generate "$work/data-bin" -s ja -t en --user-dir "$user_dir" --task context_translation \
            --path "$work/$name/checkpoint_best.pt" --beam 4 --max-tokens 4096 ${DECODING:-} >"$work/$name/test.out"
        grep '^D-' "$work/$name/test.out" | sort -t- -k2 -n | cut -f3 >"$work/$name/test.hyp.part"
        mv "$work/$name/test.hyp.part" "$work/$name/test.hyp"
    }
done

# BLEU by the number of unknown words in the source. The text is tokenised already, so BLEU counts its tokens as they are.
awk 'NR == FNR { known[$1]; next } { n = 0; for (i = 1; i <= NF; i++) n += !($i in known); print (n > 1 ? "2+" : n) }' \
    "$work/data-bin/dict.ja.txt" "$work/test.ja" >"$work/test.unknown"
for number in all 0 1 2+; do
    folder=$work/bleu/$number
    mkdir -p "$folder"
    for name in reference "${systems[@]}"; do
        if [ "$name" = reference ]; then file=$work/test.en; else file=$work/$name/test.hyp; fi
        paste "$work/test.unknown" "$file" |
            awk -F '\t' -v number="$number" 'number == "all" || $1 == number { print $2 }' >"$folder/$name"
    done
    printf '\nunknown words in the source: %s, sentences: %s\n' "$number" "$(wc -l <"$folder/reference")"
    [ ! -s "$folder/reference" ] || (cd "$folder" && sacrebleu reference -i "${systems[@]}" --metrics bleu --tokenize none \
        --format text ${systems[1]:+--paired-bs})
done

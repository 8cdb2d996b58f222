# Functions of the experiments' scripts. A script sets these variables, then sources this file: work (the folder for all
# files made), source and target (the languages), systems (the names of the systems to train), text (the folder of the
# text). Existing files are not made again, so an interrupted script continues where it stopped.
user_dir=$(ctxgates user-dir)
mkdir -p "$work"

copy_text() { # NAME...: $text/NAME, or $text/NAME.gz unpacked, to $work
    local name
    for name in "$@"; do
        if [ -e "$text/$name" ]; then cat "$text/$name"; else gzip -dc "$text/$name.gz"; fi >"$work/$name"
    done
}

binarize_bpe() { # OPERATIONS INFIX: $work/{train,valid,test}INFIX.LANG by joint BPE, with one dictionary
    local operations=$1 infix=$2 split lang
    subword-nmt learn-joint-bpe-and-vocab --input "$work/train$infix.$source" "$work/train$infix.$target" -s "$operations" \
        -o "$work/codes" --write-vocabulary "$work/vocab.$source" "$work/vocab.$target"
    for split in train valid test; do
        for lang in "$source" "$target"; do
            subword-nmt apply-bpe -c "$work/codes" --vocabulary "$work/vocab.$lang" --vocabulary-threshold 1 \
                <"$work/$split$infix.$lang" >"$work/$split.bpe.$lang"
        done
    done
    fairseq-preprocess --source-lang "$source" --target-lang "$target" --joined-dictionary --destdir "$work/data-bin" \
        --trainpref "$work/train.bpe" --validpref "$work/valid.bpe" --testpref "$work/test.bpe"
}

train() { # NAME OPTIONS...: if NAME is among the systems; the environment's EXTRA come last
    local name=$1
    shift
    [[ " ${systems[*]} " == *" $name "* ]] || return 0
    [ -e "$work/$name/done" ] || fairseq-train "$work/data-bin" -s "$source" -t "$target" --user-dir "$user_dir" \
        --optimizer adam --lr-scheduler inverse_sqrt --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --seed "${SEED:-1}" --no-epoch-checkpoints --save-dir "$work/$name" "$@" ${EXTRA:-}
    touch "$work/$name/done"
}

translate() { # SYSTEM NAME OPTIONS...: the test set into $work/NAME.hyp, tokenised; the environment's DECODING come last
    local system=$1 name=$2
    shift 2
    [ -e "$work/$name.hyp" ] || {
        fairseq-generate "$work/data-bin" -s "$source" -t "$target" --user-dir "$user_dir" --task context_translation \
            --path "$work/$system/checkpoint_best.pt" --remove-bpe --max-tokens 4096 "$@" ${DECODING:-} >"$work/$name.out"
        grep '^D-' "$work/$name.out" | sort -t- -k2 -n | cut -f3 >"$work/$name.hyp.part"
        mv "$work/$name.hyp.part" "$work/$name.hyp"
    }
}

compare_systems() { # OPTIONS...: translate the test set with every system, and compare the systems; the array scored then has
    # the options that name references and systems, for further analyses
    local name hypotheses=()
    for name in "${systems[@]}"; do
        hypotheses+=("$work/$name.hyp")
        translate "$name" "$name" "$@"
    done
    # The text is tokenised already, so BLEU counts its tokens as they are.
    scored=(--ref "$work/test.$target" --sys "${hypotheses[@]}" --tokenize none)
    ctxgates analyze compare "${scored[@]}"
}

#!/usr/bin/env bash
# What is to be measured on a GPU, in one command. Here, with a network, then there, where there may be none:
#     benchmarks/gpu.sh prepare TEXTS [WORK]     the corpora of speed.yaml and of PLAN, with all streams; and WORK.tar.gz,
#                                                which has all that the other machine needs of them
#     benchmarks/gpu.sh run [WORK] [RESULTS]     the tests of every architecture, speeds beside stock fairseq's, trainings
# TEXTS holds the folders of the corpora. Each step writes what it found as it ends, and is not run again where that is;
# the trainings go on where they were. A step that fails does not stop the others. RESULTS.tar has all results so far.
# From the environment: PYTHON, which has fairseq, pytest and the extra `evidence`; SECONDS_IN_ALL (default: 2400), and
# LIMIT, after how many of them a step before the trainings is given up (default: 500); SIZE, fairseq-train's options for
# the size and what embeddings share (default: the base size, all); ARCHITECTURES (default: one with each mechanism);
# KERNEL_OPTIONS and SPEED_OPTIONS, more options of kernel_time and transformer_speed; PYTEST_OPTIONS; PLAN, the options
# of examples/evidence/run.py (default: context gates of plans/gpu.yaml, three trainings at once).
set -euo pipefail
[ "${1:-}" = prepare ] && [ $# -ge 2 ] || [ "${1:-}" = run ] || { sed -n '2,13s/^# //p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here/..${PYTHONPATH:+:$PYTHONPATH}
evidence=$here/../examples/evidence
python=$(command -v "${PYTHON:-python3}")
python=$(cd "$(dirname "$python")" && pwd)/${python##*/}
plan=${PLAN:-$evidence/plans/gpu.yaml --jobs 3 --parts gates}

if [ "$1" = prepare ]; then
    work=${3:-.gpu}
    for options in "$evidence/plans/speed.yaml" "$plan"; do
        "$python" "$evidence/run.py" $options --prepare --texts "$2" --directory "$work"
    done
    # Without the texts between tokenising and binarizing, and with the records of what has been done.
    (cd "$work" && find corpora -type f \( -path '*/data-bin/*' -o -path '*/text/test.*' -o -path '*/text/train.en' \
        -o -name 'valid.bpe.*' -o -name 'test.bpe.*' -o -name '*.docids' -o -name '*.json' \) -print0 |
        tar --null -T - -cz) >"$work.tar.gz.part"
    mv "$work.tar.gz.part" "$work.tar.gz"
    exit
fi

work=${2:-.gpu} results=${3:-${2:-.gpu}/results} all=${SECONDS_IN_ALL:-2400} failed=""
"$python" -c 'import fairseq, pydantic, pytest, sacrebleu' # before any work
mkdir -p "$results" "$work/bin"
there=$(cd "$work" && pwd)
[ -e "$work/corpora" ] || { # which appear when they are whole
    rm -rf "$work/unpacked"
    mkdir "$work/unpacked"
    tar -xzf "$work.tar.gz" -C "$work/unpacked"
    mv "$work/unpacked/corpora" "$work"
    rmdir "$work/unpacked"
}
# The plan's commands, where they are no programs on PATH.
for program in ctxgates=ctxgates fairseq-train=fairseq_cli.train fairseq-generate=fairseq_cli.generate sacremoses=sacremoses; do
    command -v "${program%=*}" >/dev/null || {
        printf '#!/bin/sh\nexec "%s" -m %s "$@"\n' "$python" "${program#*=}" >"$work/bin/${program%=*}"
        chmod +x "$work/bin/${program%=*}"
    }
done
export PATH=$PATH:$(cd "$work/bin" && pwd)

pack() { # RESULTS.tar: what was found, and all that trainings left but their checkpoints
    tar -cf "$results.tar" --exclude='*.pt' --exclude='./results*' --exclude=./corpora --exclude=./bin \
        -C "$results" . -C "$there" .
}

child=""
trap '[ -z "$child" ] || kill "$child" 2>/dev/null || true' EXIT # which timeout hands on to what it runs
trap 'exit 130' INT
trap 'exit 143' TERM

step() { # NAME COMMAND...: run a command that writes RESULTS/NAME, or, with no file of that name, whose output becomes it
    local name=$1 seconds=$((all - SECONDS < ${LIMIT:-500} ? all - SECONDS : ${LIMIT:-500}))
    shift
    [ ! -e "$results/$name" ] || return 0
    echo "== $name"
    if [ "$seconds" -le 0 ]; then
        echo "== $name: no time is left; the same command goes on" && failed+=" $name"
    elif
        timeout --kill-after=10 "$seconds" "$@" >"$results/$name.log" 2>&1 &
        child=$!
        wait "$child"
    then
        [ -e "$results/$name" ] || mv "$results/$name.log" "$results/$name"
    else
        [ ! -e "$results/$name" ] || mv "$results/$name" "$results/$name.partial" # so that it is taken again
        echo "== $name failed: see $results/$name.log" && failed+=" $name"
    fi
    pack
}

step tests.txt "$python" -m pytest -q -p no:cacheprovider ${PYTEST_OPTIONS:-} "$here/../tests/models/test_mixed_precision.py" \
    "$here/../tests/system/test_gpu_commands.py"
if "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then
    step device_calls.json "$python" -m benchmarks.device_calls --device cuda --json "$results/device_calls.json"
fi
size=${SIZE:---share-all-embeddings --encoder-layers 6 --decoder-layers 6 --encoder-embed-dim 512 --decoder-embed-dim 512
    --encoder-ffn-embed-dim 2048 --decoder-ffn-embed-dim 2048 --encoder-attention-heads 8 --decoder-attention-heads 8}
architectures=${ARCHITECTURES:-context_transformer rcg_transformer isg_transformer fra_transformer car_transformer}
compare() { # PROGRAM NAME OPTION...: NAME.json in single precision, NAME.bf16.json
    local program=$1 name=$2 precision
    shift 2
    for precision in --bf16 ""; do
        step "$name${precision/--/.}.json" "$python" -m "benchmarks.$program" "$work/corpora/captions/data-bin" -s en -t de \
            --arch $architectures --size "$size" --json "$results/$name${precision/--/.}.json" $precision "$@"
    done
}
compare kernel_time kernels ${KERNEL_OPTIONS:---batches 10}
compare transformer_speed speed ${SPEED_OPTIONS:---batches 20 --blocks 5 --patience 10}
rm -f "$results/evidence.txt" # what is done, the plan knows
LIMIT=$all step evidence.txt "$python" "$evidence/run.py" $plan --directory "$work" \
    --minutes $(((all - SECONDS - 120) / 60))
pack
[ -z "$failed" ] || { echo "== failed:$failed" >&2; exit 1; }

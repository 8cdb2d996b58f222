#!/usr/bin/env bash
# What is to be measured on a GPU, in one command. Here, with a network, then there, where there may be none:
#     benchmarks/gpu.sh prepare TEXTS [WORK]     the corpora of the plans speed.yaml and gpu.yaml, with all streams
#     benchmarks/gpu.sh run [WORK] [RESULTS]     the tests of every architecture, speeds beside stock fairseq's, trainings
# TEXTS holds the folders of the corpora. Each step writes what it found as it ends, and is not run again where that is; a
# step that fails does not stop the others. From the environment: SIZE, fairseq-train's options for the size and what
# embeddings share (default: the base size, all), ARCHITECTURES (default: one with each mechanism), SPEED_OPTIONS, more
# options of transformer_speed.py, PYTEST_OPTIONS, PLAN, the options of examples/evidence/run.py (default: plans/gpu.yaml
# for 20 minutes, six trainings at once), PYTHON, which has fairseq and pytest, and LIMIT, the seconds after which a test run
# or the speeds of an architecture are given up (default: 300).
set -euo pipefail
[ "${1:-}" = prepare ] && [ $# -ge 2 ] || [ "${1:-}" = run ] || { sed -n '2,11s/^# //p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here/..${PYTHONPATH:+:$PYTHONPATH}
evidence=$here/../examples/evidence
python=${PYTHON:-python3}

if [ "$1" = prepare ]; then
    for plan in speed gpu; do
        "$python" "$evidence/run.py" "$evidence/plans/$plan.yaml" --prepare --texts "$2" --directory "${3:-.gpu}"
    done
    exit
fi

work=${2:-.gpu} results=${3:-.gpu/results} failed=""
mkdir -p "$results" "$work/bin"
# The plan's commands, where they are no programs on PATH.
for program in ctxgates=ctxgates fairseq-train=fairseq_cli.train fairseq-generate=fairseq_cli.generate; do
    command -v "${program%=*}" >/dev/null || {
        printf '#!/bin/sh\nexec "%s" -m %s "$@"\n' "$(command -v "$python")" "${program#*=}" >"$work/bin/${program%=*}"
        chmod +x "$work/bin/${program%=*}"
    }
done
export PATH=$PATH:$(cd "$work/bin" && pwd)

step() { # NAME COMMAND...: run a command that writes RESULTS/NAME, or, with no file of that name, whose output becomes it
    local name=$1
    shift
    [ ! -e "$results/$name" ] || return 0
    echo "== $name"
    "$@" >"$results/$name.log" 2>&1 || { echo "== $name failed: see $results/$name.log" && failed+=" $name" && return 0; }
    [ -e "$results/$name" ] || mv "$results/$name.log" "$results/$name"
}

limit=(timeout --kill-after=10 "${LIMIT:-300}")
step tests.txt "${limit[@]}" "$python" -m pytest -q -p no:cacheprovider ${PYTEST_OPTIONS:-} "$here/../tests/models/test_mixed_precision.py"
size=${SIZE:---share-all-embeddings --encoder-layers 6 --decoder-layers 6 --encoder-embed-dim 512 --decoder-embed-dim 512
    --encoder-ffn-embed-dim 2048 --decoder-ffn-embed-dim 2048 --encoder-attention-heads 8 --decoder-attention-heads 8}
architectures=${ARCHITECTURES:-context_transformer rcg_transformer isg_transformer fra_transformer car_transformer}
for precision in "" --bf16; do
    for arch in $architectures; do
        name=speed.$arch${precision/--/.}.json
        step "$name" "${limit[@]}" "$python" -m benchmarks.transformer_speed "$work/corpora/captions/data-bin" -s en -t de --arch "$arch" --size "$size" \
            --json "$results/$name" $precision ${SPEED_OPTIONS:-}
    done
done
step evidence.txt "$python" "$evidence/run.py" ${PLAN:-$evidence/plans/gpu.yaml --jobs 6 --minutes 20 --parts \
    gates preceding-sentence relations smoothing} --directory "$work"
for table in "$work"/{gates,preceding-sentence,relations,smoothing}/table.json; do
    [ ! -e "$table" ] || cp "$table" "$results/$(basename "$(dirname "$table")").json"
done
[ -z "$failed" ] || { echo "== failed:$failed" >&2; exit 1; }

#!/usr/bin/env bash
# Multi30k English-German with the relations of its English side: a plain model, Compare Fusion, and two ways to fuse the
# relation encoding into the top decoder layer; the same budget for all.
#     examples/fra/multi30k.sh TEXT_FOLDER [WORK_FOLDER]
# TEXT_FOLDER holds {train,valid,test}.{en,de} (or .gz), tokenised; CoreNLP is where `make corenlp` puts it, or in
# CORENLP_HOME. From the environment: SYSTEMS (names, of those below), EPOCHS, SEED, EXTRA (more fairseq-train options, such
# as --cpu or --fp16), DECODING (the same for fairseq-generate) and EXTRACTION (for ctxgates relations, such as --workers 8).
# Existing files are not made again.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# //p' "$0" >&2; exit 2; }
text=$1 work=${2:-multi30k-relations} source=en target=de
read -ra systems <<<"${SYSTEMS:-transformer compare_fusion transform gate}"
. "$(dirname "$0")/../functions.sh"

if [ ! -e "$work/data-bin/dict.de.txt" ]; then
    copy_text {train,valid,test}.{en,de}
    binarize_bpe 8000 ""
fi
[ -e "$work/data-bin/test.relation.en-de.json" ] || ctxgates relations "$work/data-bin" -s en -t de \
    --extractor corenlp-openie --dump "$work/tuples.jsonl" ${EXTRACTION:---workers 2}

options="--task context_translation --share-all-embeddings --encoder-layers 4 --decoder-layers 4
    --encoder-embed-dim 128 --decoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256
    --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.3 --adam-betas (0.9,0.98) --adam-eps 1e-9
    --lr 3e-3 --warmup-updates 1000 --max-tokens 1024 --max-epoch ${EPOCHS:-10}"
train transformer --arch transformer $options
train compare_fusion --arch fra_transformer --relation-ablation compare $options
train transform --arch fra_transformer --load-relations --relation-fusion transform $options
train gate --arch fra_transformer --load-relations --relation-fusion gate $options
compare_systems --beam 5

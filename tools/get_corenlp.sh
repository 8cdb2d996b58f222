#!/usr/bin/env bash
# Gets Stanford CoreNLP, as pom.xml describes it, from Maven Central.
#     tools/get_corenlp.sh DIR
# A folder that is up to date, or that someone else filled, is left as it is; a new one appears when it is whole.
set -euo pipefail

[ $# -eq 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
mkdir -p "$(dirname "$1")"
home=$(cd "$(dirname "$1")" && pwd)/$(basename "$1") # Maven would look for a relative folder from that of pom.xml
pom=$(cd "$(dirname "$0")/.." && pwd)/pom.xml
stamp=up-to-date

if [ -f "$home/$stamp" ]; then
    [ "$(cat "$home/$stamp")" != "$(cksum <"$pom")" ] || exit 0
elif compgen -G "$home/stanford-corenlp-*.jar" >/dev/null; then
    echo "[corenlp] $home holds a CoreNLP that was not made here, and is left as it is"
    exit 0
elif [ -e "$home" ] && ! rmdir "$home" 2>/dev/null; then
    echo "error: $home is there and holds no CoreNLP: remove it, or name another folder (CORENLP_HOME=...)" >&2
    exit 1
fi
for program in java mvn; do
    command -v "$program" >/dev/null || {
        echo "error: $program is not on PATH; CoreNLP needs Java and Maven (apt-get install openjdk-17-jdk maven)" >&2
        exit 1
    }
done

temporary=$home.$$
trap 'rm -rf "$temporary"' EXIT
echo "[corenlp] getting CoreNLP from Maven Central into $home (1 to 3 minutes, 0.7 GB, and as much in Maven's cache)"
mvn --batch-mode --quiet -Dstyle.color=never -Dmaven.wagon.http.retryHandler.count=5 --file "$pom" \
    dependency:copy-dependencies -DoutputDirectory="$temporary"
cksum <"$pom" >"$temporary/$stamp"
rm -rf "$home"
mv -T "$temporary" "$home"
echo "[corenlp] ready: $home"

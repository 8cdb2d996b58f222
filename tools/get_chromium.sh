#!/usr/bin/env bash
# Installs Debian's Chromium, in which a test looks at the pages of `ctxgates analyze --html`. Where that is not possible
# the test is skipped.
set -euo pipefail

if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Chromium is not installed: that needs root and apt-get"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
get() { apt-get -qq -o Acquire::Retries=3 "$@" 2>&1; }
said=$(get update && get install -y --no-install-recommends chromium) ||
    printf 'Chromium is not installed: apt-get failed\n%s\n' "$(tail -n 5 <<<"$said")"

#!/usr/bin/env bash
# Makes a virtual environment with this project and the packages of one of its three stacks, or brings it up to date.
#     tools/setup_venv.sh modern|classic|latest DIR [INTERPRETER]
# Without INTERPRETER it looks for one that the stack runs on: on PATH, then among pyenv's. An environment that is up to
# date is left as it is; one whose set-up was interrupted is made anew.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
stack=$1 venv=$2 interpreter=${3:-}
case $stack in
    modern)
        versions="3.12 3.11" needs="3.12, or 3.11 with Python.h and a C++ compiler"
        extras="docs,fairseq,lint,test" cost="1 to 2 minutes, 6 GB" make="install MODERN_PYTHON"
        first="torch numpy cython setuptools wheel"
        # Where fairseq-fixed has no ready wheel it compiles; isolated, its build would download another torch.
        isolation="--no-build-isolation" ;;
    classic)
        versions="3.10 3.9 3.8" needs="3.10, 3.9 or 3.8, with Python.h and a C++ compiler"
        extras="fairseq,test" cost="1 to 2 minutes, 2 GB" make="install-classic CLASSIC_PYTHON"
        # torchaudio is fairseq's requirement: unless it is there in the matching version, pip replaces torch.
        first="torch torchaudio numpy wheel"
        isolation="" ;;
    latest) # the classic fairseq with the newest torch that its newest Python has
        versions="3.10" needs="3.10, with Python.h and a C++ compiler"
        extras="fairseq,test" cost="1 to 2 minutes, 5 GB" make="install-latest LATEST_PYTHON"
        first="torch torchaudio numpy wheel"
        isolation="" ;;
    *) echo "error: the stack is modern, classic or latest, not $stack" >&2; exit 2 ;;
esac

root=$(cd "$(dirname "$0")/.." && pwd)
constraints=$root/tools/constraints-$stack.txt
stamp=$venv/up-to-date
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { echo "[$stack stack] $*"; }

fingerprint() { # of everything that decides what is in the environment, and of where it points to
    { echo "$root"; cat "$root/setup.py" "$root/pyproject.toml" "$constraints" "$0"; } | cksum
}

candidates() { # VERSION: where such an interpreter may be
    local pyenv
    type -ap "python$1" python3 python || true
    for pyenv in "$(pyenv root 2>/dev/null || true)" "${HOME:-}/.pyenv"; do
        ls -d "$pyenv/versions/$1".*/bin/python3 2>/dev/null || true
    done
}

usable() { # INTERPRETER VERSION: does it run (a pyenv shim may not), and can it do what the set-up needs?
    "$1" - "$2" >/dev/null 2>&1 <<'PYTHON'
import ensurepip, os, sys, sysconfig, venv
version = "%d.%d" % sys.version_info[:2]
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
has_wheel = version == "3.12"  # of its fairseq, which the others must compile
sys.exit(version != sys.argv[1] or not (has_wheel or os.path.exists(headers)))
PYTHON
}

find_interpreter() {
    local version candidate
    for version in $versions; do
        while read -r candidate; do
            if usable "$candidate" "$version"; then
                echo "$candidate"
                return
            fi
        done <<<"${interpreter:-$(candidates "$version")}"
    done
    local problem="none on PATH or under pyenv is one that works"
    [ -z "$interpreter" ] || problem="$interpreter is not one that works"
    echo "error: the $stack stack needs Python $needs, and $problem" >&2
    echo "  install one (pyenv install ${versions%% *}), or name it: make $make=/path/to/python" >&2
    return 1
}

if [ -f "$stamp" ] && "$venv/bin/pip" --version >/dev/null 2>&1; then
    [ "$(cat "$stamp")" != "$(fingerprint)" ] || exit 0
    say "updating $venv"
    rm "$stamp"
else
    python=$(find_interpreter)
    say "setting up $venv with $python ($cost)"
    "$python" -m venv --clear "$venv"
fi

pip_setting() { # NAME: of pip's, from its environment variable or its configuration files; nothing where it is not set
    local variable=${1//-/_}
    variable=PIP_${variable^^}
    echo "${!variable:-$("$venv/bin/python" -m pip config get "global.$1" 2>/dev/null || true)}"
}

# uv is much faster than pip, and needs no older one for fairseq 0.12.2; but it does not ask pip's settings where packages
# come from.
use_settings_of_pip() {
    local value setting
    for setting in UV_DEFAULT_INDEX=index-url UV_INDEX=extra-index-url UV_FIND_LINKS=find-links SSL_CERT_FILE=cert; do
        value=$(pip_setting "${setting#*=}")
        setting=${setting%=*}
        [ "$setting" != UV_FIND_LINKS ] || value=${value// /,}
        [ -z "$value" ] || [ -n "${!setting:-}" ] || export "$setting=$value"
    done
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
}

install() { # ARGUMENT...: of uv pip install
    local quiet=--quiet
    [ ! -t 1 ] || quiet="" # progress bars are for a terminal
    "$venv/bin/uv" pip install $quiet --python "$venv/bin/python" -c "$constraints" "$@"
}

use_settings_of_pip
"$venv/bin/python" -m pip install --quiet -c "$constraints" uv
say "1/3 installing ${first// /, }"
install $first
say "2/3 installing fairseq, this project and what it needs"
install $isolation -e "$root[$extras]"
say "3/3 checking"
# What commands import is compiled by this first import, or each start would do it again where Python may not write
# bytecode (PYTHONDONTWRITEBYTECODE, folders of another user).
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -W ignore - <<'PYTHON'
import matplotlib.pyplot
import numba
import sacrebleu
import torch

import fairseq.trainer
import fairseq_ctxgates.tasks

torch.optim.Adam([torch.zeros(1)])  # imports torch's compiler
print(f"fairseq {fairseq.__version__}, torch {torch.__version__}")
PYTHON
"$venv/bin/ctxgates" user-dir >/dev/null
fingerprint >"$stamp"
say "ready: $venv"

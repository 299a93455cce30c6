#!/bin/sh
# Make the environment VENV with PYTHON, from the lock: tools/environment.sh VENV PYTHON
#
# uv does it. It comes with pip; for a Python without pip (Debian's, without its package python3-venv) it is taken from
# the environment .venv, or from the path.
set -eu
venv=$1 python=$2
if ! [ -x "$venv/bin/python" ]; then
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv "$venv"
    else
        "$python" -m venv --without-pip "$venv"
    fi
fi
uv=$venv/bin/uv
if ! [ -x "$uv" ]; then
    if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        "$venv/bin/python" -m pip install --quiet uv
    elif [ -x .venv/bin/uv ]; then
        uv=.venv/bin/uv
    elif ! uv=$(command -v uv); then
        echo "$python has no pip, and there is no uv: install pip (on Debian: apt-get install python3-venv) or uv" >&2
        exit 1
    fi
fi
UV_PROJECT_ENVIRONMENT=$venv "$uv" sync --frozen --quiet --python "$venv/bin/python"

#!/bin/sh
# Set-up steps of the Makefile, run from the repository's root: setup.sh environment | package
set -eu

venv=.venv
extras=cpu,hdfs,test,dev,docs,demo
layers="sharding pipeline training tools"
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# Debian's packages $@: installed when root, else named with the command that installs them.
debian() {
    command -v apt-get >/dev/null || fail "please install what Debian calls: $*"
    [ "$(id -u)" = 0 ] || fail "missing Debian packages; run: sudo apt-get install -y $*"
    say "installing Debian packages: $*"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } \
        >"$log" 2>&1 || { tail -n 5 "$log" >&2; fail "apt-get install $* failed"; }
}

suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# Whether nothing more is to be installed for an environment of this Python with packages that are compiled.
complete() {
    "$1" -c 'import ensurepip, os, sys, sysconfig, venv
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null
}

# Distributions compile Python with a profile, which pyenv does not: theirs takes a tenth less processor time.
find_python() {
    system=/usr/bin/python3
    if [ -z "${PYTHON:-}" ] && suitable $system && complete $system; then echo $system; return; fi
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if suitable "$candidate"; then echo "$candidate"; return; fi
    done
    fail "Python 3.10 or newer is needed${PYTHON:+, and PYTHON=$PYTHON is not}"
}

# pip's own warnings stay in the log; its last words are shown when it fails.
pip_install() {
    "$venv/bin/python" -m pip install "$@" >"$log" 2>&1 || { tail -n 15 "$log" >&2; fail "pip install failed"; }
}

# The checkout as a package: Python finds the folders where they are (an editable installation), with C compiled beside
# its source. What reads files without running them (mypy, editors) finds them by links, as `ringfeed` in .venv/src.
# The package itself lies on Python's path, in .venv/face: else any folder named `ringfeed` would come before it.
install_checkout() {
    rm -rf build ./*.egg-info
    pip_install --no-build-isolation "$@"
    rm -rf build ./*.egg-info
    mkdir -p "$venv/src/ringfeed" "$venv/face/ringfeed"
    for layer in $layers; do ln -sfn "../../../$layer" "$venv/src/ringfeed/$layer"; done
    for file in __init__.py __init__.pyi py.typed; do
        for folder in src face; do ln -sfn "../../../package/$file" "$venv/$folder/ringfeed/$file"; done
    done
    echo "$PWD/$venv/face" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ringfeed.pth"
}

environment() {
    if ! { suitable "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
        python=$(find_python)
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            debian "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
        say "making $venv with $("$python" --version)"
        "$python" -m venv "$venv"
    fi
    say "installing ringfeed[$extras] into $venv (minutes, the first time)"
    pip_install --upgrade 'setuptools>=77' 'wheel>=0.43'
    install_checkout --editable ".[$extras]"
    "$venv/bin/ringfeed" install-horovod
}

package() {
    say "compiling, and installing the checkout"
    install_checkout --no-deps --editable .
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$1"

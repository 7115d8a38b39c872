# shellcheck shell=bash
# Makes or reuses .venv: ./quickstart and ./test source this. The one environment variable of ours is PYTHON, the
# interpreter to make .venv from; the package index is pip's own setting (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL).

die() {
    echo "${0##*/}: error: $1" >&2
    exit 2
}

# A Python that is new enough and can make virtual environments, into $python.
find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            python=$name
            # Debian ships venv without the part that puts pip into it.
            "$python" -c 'import ensurepip, venv' 2>/dev/null ||
                die "$python cannot make a virtual environment; install what is missing: apt install python3-venv"
            return
        fi
    done
    die "no Python >= 3.11 found (tried ${PYTHON:-python3 and python3.11 to python3.14}); install one: \
apt install python3 python3-venv, or set PYTHON"
}

# make_venv EXTRA: in the repository, .venv with longmix[EXTRA] (EXTRA may be empty), installed again only when what it
# depends on has changed.
make_venv() {
    local extra=$1 stamp wanted quiet=()
    stamp=.venv/longmix-installed${extra:+-$extra}
    # The folder is part of it: a moved repository takes its .venv along, and the paths in that no longer hold.
    wanted=$(cat pyproject.toml constraints.txt <(echo "$PWD") | sha256sum)
    if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && .venv/bin/python -c '' 2>/dev/null; then
        return
    fi
    # One that was moved here, or whose Python is gone, is made anew; any other is brought up to date.
    if [[ $(cat .venv/longmix-folder 2>/dev/null || echo "$PWD") != "$PWD" ]] || ! .venv/bin/python -c '' 2>/dev/null; then
        find_python
        echo "making .venv with $("$python" --version)"
        "$python" -m venv --clear .venv || die "$python -m venv .venv failed (see above)"
        echo "$PWD" >.venv/longmix-folder
    fi
    echo "installing longmix and what it needs (the first time fetches torch: up to some gigabytes)"
    # Somebody who watches sees the downloads; a log needs no such lines.
    [[ -t 1 ]] || quiet=(--quiet)
    .venv/bin/python -m pip install "${quiet[@]}" --disable-pip-version-check -c constraints.txt \
        -e ".${extra:+[$extra]}" ||
        die "pip could not install longmix into .venv (see above); give the same command again once that is mended"
    echo "$wanted" >"$stamp"
}

#!/bin/sh
# Installs the wheel into a fresh virtual environment and tries it as a user would.
#
#   check.sh [--torch] [--snapshots DIR] [--python PYTHON] WHEEL
#
# The machine must have no compiler and no Rust, so that nothing can be built here. Prints one line
# for each check with its seconds; the first failure ends with status 1 and shows the output.
# --torch also trains with PyTorch, which is installed from the package index unless this Python has
# it. --snapshots names a folder whose folders hold the snapshots of a job each: the class of each is
# shown; one whose name ends with _leak must be a leak, with one that ends with _clean nothing is wrong.
set -eu

python=python3
torch=no
snapshots=
while [ $# -gt 1 ]; do
    case $1 in
        --torch) torch=yes ;;
        --snapshots) snapshots=$2; shift ;;
        --python) python=$2; shift ;;
        *) echo "check.sh: unknown option $1" >&2; exit 64 ;;
    esac
    shift
done
wheel=${1:?the path of the wheel is missing}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# check NAME COMMAND…: runs a command that must succeed; its output is in $work/said.
check() {
    name=$1
    shift
    started=$(date +%s)
    if "$@" >"$work/said" 2>&1 </dev/null; then
        echo "ok $name, $(($(date +%s) - started)) s"
    else
        echo "FAILED $name: $*"
        cat "$work/said"
        exit 1
    fi
}

nothing_builds_here() {
    for tool in cc gcc clang make rustc cargo; do
        if command -v $tool; then
            return 1
        fi
    done
}

# says TEXT: the last output has it.
says() {
    if ! grep -q -- "$1" "$work/said"; then
        echo "FAILED: the output has no \"$1\""
        cat "$work/said"
        exit 1
    fi
}

# one_job FOLDER: its snapshots are judged, and as its name says.
one_job() {
    check "analyze $(basename "$1")" memtape analyze "$1"
    class=$(python -c 'import memtape, sys
report = memtape.report(sys.argv[1])
print(report.problem or (report.verdict.kind if report.verdict else "nothing"))' "$1")
    echo "   $class"
    case $(basename "$1") in
        *_leak) [ "$class" = leak ] ;;
        *_clean) [ "$class" = nothing ] ;;
    esac || { echo "FAILED: expected another class"; exit 1; }
}

echo "$("$python" --version), $(ldd --version 2>&1 | head -n 1)"
check "no compiler" nothing_builds_here
check "virtual environment" "$python" -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
check "pip install" pip install --no-index --no-deps "$wheel"
check "memtape --version" memtape --version
version=$(cat "$work/said")
check "python -m memtape" python -m memtape --version
says "^$version\$"
check "import memtape" python -c 'import memtape; print("memtape", memtape.__version__)
print(memtape.tape()); print(memtape.report("/nothing/here"))'
says "^$version\$"
says "this process writes no tape"
check "demo" memtape demo --exit
says "rank 2"
if [ -n "$snapshots" ]; then
    for job in "$snapshots"/*/; do
        one_job "$job"
    done
fi
if [ $torch = yes ]; then
    python -c 'import torch' 2>/dev/null ||
        check "pip install torch" pip install --no-cache-dir torch==2.11.0
    check "demo --torch" memtape demo --torch --exit --ranks 2 --for 600s
    says "rank 1"
fi

#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh environment, and runs there the tests and the examples of the pages. Needs
# python3 (3.9 or newer) and, for pip, PyPI or wheels in PIP_FIND_LINKS.
set -euo pipefail
cd "$(dirname "$0")"
# Unoptimized and without debug information: it is built for the tests alone.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}" CARGO_PROFILE_DEV_DEBUG=0 PIP_DISABLE_PIP_VERSION_CHECK=1
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH VIRTUAL_ENV

python3 -m venv "$work/build"
"$work/build/bin/pip" install --quiet 'maturin>=1.7,<2'
"$work/build/bin/maturin" build --quiet --locked --out "$work/wheels"

python3 -m venv "$work/fresh"
"$work/fresh/bin/pip" install --quiet pytest "$work"/wheels/varve-*.whl
cp -r tests README.md "$work/"
cp ../../README.md "$work/main.md"
cd "$work" # nothing of the sources is in reach
"$work/fresh/bin/python" -m pytest -q -p no:cacheprovider tests
# What the examples of the two pages print.
example() {
  awk '/^```python$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$1" >example.py
  rm -rf bank
  said="$("$work/fresh/bin/python" example.py)"
  [ "$said" = "$2" ] || { echo "the example of $1 printed: $said" >&2; exit 1; }
}
example README.md $'alice 0\nbob 10'
example main.md 'bob 10'
echo "the examples of the pages work"

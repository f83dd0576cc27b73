#!/bin/sh
# Sets up semistream in .venv, with all that it needs, and says what it does.
#
#     sh install.sh            what users need
#     sh install.sh dev        what developers need besides
#
# PYTHON names the interpreter, VENV the folder.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
venv=${VENV:-.venv}
began=$(date +%s)

say() { printf '%s\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

# How this system installs a package.
if command -v apt-get >/dev/null; then get="sudo apt-get install"
elif command -v dnf >/dev/null; then get="sudo dnf install"
elif command -v zypper >/dev/null; then get="sudo zypper install"
elif command -v apk >/dev/null; then get="sudo apk add"
elif command -v brew >/dev/null; then get="brew install"
else get="install"; fi

if [ "${1:-}" = dev ]; then
  [ -x "$venv/bin/semistream" ] || sh install.sh
  say "Installing what developers need: tests, documentation, databases, benchmarks. A few minutes."
  pip -e '.[dev]'
  say "Installed in $(($(date +%s) - began)) s."
  exit
fi

command -v "$python" >/dev/null ||
  fail "'$python' was not found. Install Python 3.11 or newer ($get python3), or name one: PYTHON=python3.12"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "semistream needs Python 3.11 or newer, but '$python' is $("$python" --version 2>&1). Name a newer one: PYTHON=python3.12"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "'$python' has no venv. Install it: $get $("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"

say "[1/3] $("$python" --version), in $venv"
"$python" -m venv "$venv"
say "[2/3] Spark 4.2: some 450 MB. Also Arrow, Numba and others. A few minutes, once."
pip -e . 'pyspark==4.2.*'
say "[3/3] Java, and compiled kernels"
"$venv/bin/semistream" doctor --mend
say "Installed in $(($(date +%s) - began)) s. To look at it: $venv/bin/semistream demo"
command -v make >/dev/null || say "For 'make demo' and 'make test': $get make"

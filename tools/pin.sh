#!/usr/bin/env bash
# Writes constraints.txt from .venv; with the word `serve`, constraints-serve.txt from .venv-serve. Local version labels such
# as +cpu go, so that one file serves every build of a release.
# With `docs` or `release`: constraints-docs.txt or constraints-release.txt again, with the digest of every file of the
# versions that it names, so that pip installs no other file of them (--require-hashes). Change the versions there first.
# `make test` installs MiniLM's model folder without its framework; whoever has that framework does not pin it here.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = docs ] || [ "${1:-}" = release ]; then
    file=constraints-$1.txt pinner=.cache/pinner
    [ -x "$pinner/bin/pip-compile" ] || { python3 -m venv "$pinner" && "$pinner/bin/python" -m pip install --quiet pip-tools; }
    grep '^#' "$file" > "$file.new"
    sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' "$file" > "$pinner/pins.in"
    "$pinner/bin/pip-compile" --quiet --generate-hashes --no-annotate --no-header --strip-extras --no-emit-index-url \
        --no-emit-options --allow-unsafe --output-file=- "$pinner/pins.in" | grep -v '^#' | grep . >> "$file.new"
    mv "$file.new" "$file"
    exit
fi
if [ "${1:-}" = serve ]; then
    venv=${2:-.venv-serve} file=constraints-serve.txt
    what="# What \`make serve-test\` installs, so that an install repeats. Apart from constraints.txt, which it contradicts: KServe
# wants an older psutil and protobuf, and NVIDIA's client of the protocol an older ml_dtypes.
# Made by: tools/pin.sh serve"
else
    venv=.venv file=constraints.txt
    what="# What the project is developed against, so that an install repeats; pyproject.toml has the ranges it accepts.
# Made by: tools/pin.sh"
fi
{
    echo "$what"
    "$venv/bin/python" -m pip freeze --all --exclude-editable |
        grep -E '^[A-Za-z0-9._-]+==' |
        grep -v -i -E '^(pip|wheel|sentence-transformers|scikit-learn|scipy|joblib|threadpoolctl|narwhals)==' |
        sed -E 's/\+[A-Za-z0-9.]+$//' | LC_ALL=C sort -f
} > "$file.new"
mv "$file.new" "$file"

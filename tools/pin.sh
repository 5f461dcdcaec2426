#!/usr/bin/env bash
# Writes constraints.txt from .venv. Local version labels such as +cpu go, so that one file serves every build of a release.
# `make test` installs MiniLM's model folder without its framework; whoever has that framework does not pin it here.
set -euo pipefail
cd "$(dirname "$0")/.."
{
    echo "# What the project is developed against, so that an install repeats; pyproject.toml has the ranges it accepts."
    echo "# Made by: tools/pin.sh"
    .venv/bin/python -m pip freeze --all --exclude-editable |
        grep -E '^[A-Za-z0-9._-]+==' |
        grep -v -i -E '^(pip|wheel|sentence-transformers|scikit-learn|scipy|joblib|threadpoolctl|narwhals)==' |
        sed -E 's/\+[A-Za-z0-9.]+$//' | LC_ALL=C sort -f
} > constraints.txt.new
mv constraints.txt.new constraints.txt

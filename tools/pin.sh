#!/usr/bin/env bash
# Writes the files that say which version of each package is installed. Local version labels such as +cpu go, so that one
# file serves every build of a release.
#
#   tools/pin.sh                    constraints.txt, from .venv
#   tools/pin.sh serve [FOLDER]     constraints-serve.txt, from .venv-serve or another environment
#   tools/pin.sh docs | release     constraints-docs.txt or constraints-release.txt, with the versions that are in it
#
# The last three also have the digest of every file of a version, so that pip installs no other one (--require-hashes).
# PyTorch is not among them: its CPU build and the one with CUDA have one version and different digests.
# MiniLM's model folder is installed without its framework; whoever has that framework does not pin it here.
set -euo pipefail
cd "$(dirname "$0")/.."

installed() {
    "$1/bin/python" -m pip freeze --all --exclude-editable |
        grep -E '^[A-Za-z0-9._-]+==' |
        grep -v -i -E '^(pip|wheel|sentence-transformers|scikit-learn|scipy|joblib|threadpoolctl|narwhals)==' |
        sed -E 's/\+[A-Za-z0-9.]+$//' | LC_ALL=C sort -f
}

with_digests() {
    local pinner=.cache/pinner
    [ -x "$pinner/bin/uv" ] || { python3 -m venv "$pinner" && "$pinner/bin/python" -m pip install --quiet uv; }
    grep -v '^torch==' | "$pinner/bin/uv" pip compile --quiet --no-deps --generate-hashes --no-annotate --no-header -
}

what=${1:-}
case $what in
    "") file=constraints.txt pins=$(installed .venv) ;;
    serve) file=constraints-serve.txt pins=$(installed "${2:-.venv-serve}" | with_digests) ;;
    docs | release)
        file=constraints-$what.txt
        pins=$(sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' "$file" | with_digests)
        ;;
    *) echo "tools/pin.sh: got $what; expected nothing, serve, docs or release" >&2 && exit 2 ;;
esac
{ grep '^#' "$file" && echo "$pins"; } > "$file.new"
mv "$file.new" "$file"

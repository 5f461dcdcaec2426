#!/usr/bin/env bash
# gpu-check on a machine that reaches no package index: packages come from a folder of wheels, PyTorch and what the wheels
# do not bring from the machine's own Python.
#
#   tools/gpu_offline.sh WHEELS [OPTION of gpu-check]...
#
# Each model and precision is a command of its own, which ends after its time; what it measured until then is in benchmarks/,
# and the same command goes on there. Variables, and what they are by default:
#   PYTHON=python3          the Python that has PyTorch with CUDA
#   SITE=out/gpu-offline    where the wheels are laid out; kept for the next run
#   SECONDS_EACH=300        the time of one model in one precision
#   MODELS="bert_encoder llama_decoder"   DTYPES="fp16 bf16"
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' tools/gpu_offline.sh >&2
    exit 2
}
[ $# -ge 1 ] && [ -d "$1" ] || usage
wheels=$1
shift
python=${PYTHON:-python3}
site=$(mkdir -p "${SITE:-out/gpu-offline}" && cd "${SITE:-out/gpu-offline}" && pwd)
seconds=${SECONDS_EACH:-300}

laid_out() { (cd "$wheels" && ls -l -- *.whl) 2>/dev/null | cksum; }
if [ "$(cat "$site/.laid-out" 2>/dev/null)" != "$(laid_out)" ]; then
    echo "laying out $(find "$wheels" -name '*.whl' | wc -l) wheels in $site"
    "$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --upgrade --target "$site" \
        "$wheels"/*.whl
    laid_out >"$site/.laid-out"
fi

# The checkout's own sources, then the wheels; the rest is the machine's. The loader searches no folder of a wheel, so those
# of NVIDIA's libraries are named, the wheels' before the machine's.
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
libraries=$("$python" -c '
import pathlib, sys
found = [lib for entry in sys.path if entry for lib in sorted(pathlib.Path(entry).glob("nvidia/*/lib"))]
print(":".join(map(str, found)))')
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

worst=0
for model in ${MODELS-bert_encoder llama_decoder}; do
    for dtype in ${DTYPES:-fp16 bf16}; do
        echo "== $model $dtype"
        status=0
        # It keeps its budget by itself, but for an export or the build of an engine that takes longer.
        timeout --signal=INT --kill-after=20 "$((seconds + 30))" "$python" -m attnport.cli gpu-check --only "$model" \
            --dtype "$dtype" --budget "$seconds" "$@" || status=$?
        echo "== $model $dtype: exit $status"
        [ "$status" -le "$worst" ] || worst=$status
    done
done
exit "$worst"

#!/usr/bin/env bash
# gpu-check on a machine that reaches no package index: packages come from a folder of wheels, PyTorch and what the wheels
# do not bring from the machine's own Python.
#
#   tools/gpu_offline.sh WHEELS [OPTION of gpu-check]...
#
# Each model and precision is a command of its own, which ends after its time; what it measured until then is in out/gpu-check,
# and the same command goes on there. Variables, and what they are by default:
#   PYTHON=python3          the Python that has PyTorch with CUDA
#   SITE=out/gpu-offline    where the wheels are laid out; kept for the next run
#   SECONDS_EACH=300        the time of one model in one precision
#   MODELS="bert_encoder llama_decoder"   DTYPES="fp16 bf16"
# With MODELS="" wheels are laid out, and nothing else is done.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$root/tools/gpu_offline.sh" >&2
    exit 2
}
[ $# -ge 1 ] && [ -d "$1" ] || usage
# Before the folder is changed: both may be relative to the caller's.
wheels=("$(CDPATH='' cd -- "$1" && pwd)"/*.whl)
[ -e "${wheels[0]}" ] || { echo "no wheels (*.whl) in $1" >&2; usage; }
shift
place=${SITE:-$root/out/gpu-offline}
mkdir -p -- "$place"
place=$(CDPATH='' cd -- "$place" && pwd)
site=$place/packages
python=${PYTHON:-python3}
seconds=${SECONDS_EACH:-300}
cd -- "$root"

# The time in full: a wheel that is built again within a minute may have the same size.
state=$(ls -l --full-time -- "${wheels[@]}" | cksum)
if [ "$(cat -- "$place/.laid-out" 2>/dev/null)" != "$state" ]; then
    echo "laying out ${#wheels[@]} wheels in $site"
    # From nothing: pip leaves what an earlier release of a package had, with its version. Only what was made here goes.
    [ ! -e "$place/.laid-out" ] || rm -rf -- "$site"
    : >"$place/.laid-out"
    "$python" -m pip --disable-pip-version-check install --quiet --no-index --no-deps --upgrade --target "$site" \
        "${wheels[@]}"
    echo "$state" >"$place/.laid-out"
fi

# The checkout's own sources, then the wheels; the rest is the machine's. The loader searches no folder of a wheel, so
# those of NVIDIA's libraries are named, the wheels' before the machine's. An empty name would be the current folder.
export PYTHONPATH="$root:$site${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
libraries=$("$python" -c '
import os, pathlib, sys
found = [str(lib) for entry in sys.path if entry for lib in sorted(pathlib.Path(entry).glob("nvidia/*/lib"))]
print(":".join([*found, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]))')
[ -z "$libraries" ] || export LD_LIBRARY_PATH=$libraries

worst=0
for model in ${MODELS-bert_encoder llama_decoder}; do
    for dtype in ${DTYPES:-fp16 bf16}; do
        echo "== $model $dtype"
        status=0
        # It keeps its budget by itself, but for an export or the build of an engine that takes longer.
        timeout --signal=INT --kill-after=20 "$((seconds + 30))" "$python" -m attnport.cli gpu-check --only "$model" \
            --precision "$dtype" --budget "$seconds" "$@" || status=$?
        echo "== $model $dtype: exit $status"
        [ "$status" -le "$worst" ] || worst=$status
    done
done
exit "$worst"

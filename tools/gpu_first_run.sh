#!/usr/bin/env bash
# What an NVIDIA GPU that is at hand for a quarter of an hour should be asked, in this order: see benchmarks/gpu_first_run.py.
#
#   tools/gpu_first_run.sh [--rehearse] FOLDER
#
# Each step has a time limit and a file of its own in FOLDER, and a step that fails or runs out of time does not stop the
# next. With --rehearse all of it runs on a machine without a GPU, on ONNX Runtime's CPU provider and small models, and says
# what it would have measured. Variables: PYTHON=python3, ONLY="kernels decode" for some of the steps.
# The exit code is 1 if a step failed.
set -uo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$root/tools/gpu_first_run.sh" >&2
    exit 2
}
rehearse=''
if [ "${1-}" = --rehearse ]; then
    rehearse=--rehearse
    shift
fi
[ $# -eq 1 ] && [ "${1#-}" = "$1" ] || usage
mkdir -p -- "$1" || exit 2
out=$(CDPATH='' cd -- "$1" && pwd)
python=${PYTHON:-python3}
cd -- "$root" || exit 2
export PYTHONPATH="$root:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
worst=0

# step SECONDS NAME WHAT COMMAND...: what it settles is said, then it runs.
step() {
    local seconds=$1 name=$2 what=$3 status=0
    shift 3
    case " ${ONLY-$name} " in *" $name "*) ;; *) return ;; esac
    [ -z "$rehearse" ] || seconds=$((seconds * 20)) # a machine without a GPU may be small, and busy
    echo "== $name: $what"
    timeout --signal=INT --kill-after=20 "$seconds" "$@" >"$out/$name.txt" 2>&1 || status=$?
    cat -- "$out/$name.txt"
    echo "== $name: exit $status"
    [ "$status" -eq 0 ] || worst=1
}
# measured SECONDS NAME WHAT: a step of benchmarks/gpu_first_run.py.
measured() {
    step "$1" "$2" "$3" "$python" benchmarks/gpu_first_run.py "$2" "$out" ${rehearse:+"$rehearse"}
}
# on_gpu SECONDS NAME WHAT COMMAND...: nothing here stands for it.
on_gpu() {
    if [ -n "$rehearse" ]; then
        case " ${ONLY-$2} " in *" $2 "*) printf '== %s: %s\nwould run:' "$2" "$3" && printf ' %q' "${@:4}" && echo ;; esac
    else
        step "$@"
    fi
}

measured 30 peaks "what the GPU reaches at most, cold, with its clocks"
step 60 doctor "which runtimes and which kernels of attention are there" "$python" -m attnport.cli doctor --refresh --json
measured 60 kernels "the kernel and the time of lengths and of a bias, by what ONNX Runtime is allowed"
measured 60 ragged "whether real tokens alone are quicker than padding"
measured 60 decode "what a step costs with caches on the device"
measured 40 graphs "what a bundle's reader gains by capturing graphs"
measured 40 operators "which operators bf16 lacks that fp16 has"
on_gpu 110 llama "the latency of Llama in bf16, which is missing" "$python" -m attnport.cli gpu-check --only llama_decoder \
    --precision bf16 --no-cold --budget 100
on_gpu 60 tests "what calls the driver" "$python" -m pytest -m gpu tests/runtimes tests/contract -x -q
exit "$worst"

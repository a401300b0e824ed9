#!/usr/bin/env bash
# A SLURM job of GPU nodes, and a sweep on it.
#
#   python3 -m venv ~/.isojax && ~/.isojax/bin/pip install '.[ray,cuda,verify]'      once, in the checkout; a folder that all nodes see
#                                                                             without a checkout: 'isojax[ray,cuda,verify]==0.1.0'
#   launch/slurm.sh my.yaml                      Ray inside the allocation: one cell per node, on all nodes at the same time
#   MODE=one launch/slurm.sh my.yaml             all GPUs are one run: one process per GPU, cells one after the other
#   OPTIONS='--nodes=2 --time=4:00:00' launch/slurm.sh my.yaml       with options of sbatch, over the lines below
#   scancel JOB                                  ends the job; the records stay
#
# Each submits itself by sbatch, once all that the config refers to is in one file in RUNS (isojax pack --shared): the job runs with your
# files as they are now. What is not there is refused. `sbatch launch/slurm.sh my.yaml` does the same when the job begins. Further configs
# and key=value may follow CONFIG. If the job's time ends before the sweep does, runs save their state; submit the same line again.
# `isojax status RUN` shows the sweep from any node. Edit the next lines for your cluster.
#SBATCH --job-name=isojax
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --output=isojax-%j.log
set -euo pipefail

MODE=${MODE:-ray}                       # ray, or one
RUNS=${RUNS:-$PWD/runs}                 # run.dir; a folder that all nodes see
VENV=${VENV:-$HOME/.isojax}             # Python's environment with isojax, which all nodes see too; prepared before the job
GPUS=${GPUS:-${SLURM_GPUS_ON_NODE:-8}}  # per node
MESH=${MESH:-}                          # by default fsdp over one node (ray), or over all nodes (one)
HEAD=${HEAD:-}                          # ray: the first node's address for the other nodes; by default that of its first interface
PORT=${PORT:-6379}                      # ray: the head's port
OPTIONS=${OPTIONS:-}                    # of sbatch, where this script submits itself

[ "$#" -gt 0 ] || { echo "error: given no config, expected one: launch/slurm.sh my.yaml" >&2 && exit 2; }
[[ $MODE =~ ^(ray|one)$ ]] || { echo "error: given MODE=$MODE, expected ray or one" >&2 && exit 2; }

# All that the config of these words refers to, in a file of this name in RUNS, which every node sees.
pack() {
    packed=$RUNS/packs/$1.pack.tgz
    mkdir -p "$RUNS/packs"
    "$VENV/bin/isojax" pack "${@:2}" "run.dir=$RUNS" --shared --out "$packed"
}
if [ -z "${SLURM_JOB_ID:-}" ]; then
    [ -x "$VENV/bin/isojax" ] || { echo "error: given VENV=$VENV, and it has no isojax; the top of this script says how to prepare it" >&2 && exit 2; }
    command -v sbatch >/dev/null || { echo "error: no SLURM on this machine: neither a job nor sbatch" >&2 && exit 2; }
    pack "$(date +%Y%m%d-%H%M%S)-$$" "$@"
    read -ra options <<<"$OPTIONS"
    exec sbatch ${options[@]+"${options[@]}"} "$0" "$packed"
fi
needs=isojax,jax
[ "$MODE" != ray ] || needs=$needs,ray
if ! srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 "$VENV/bin/python" -c "import $needs"; then
    echo "error: given VENV=$VENV, expected an environment on every node with $needs in it; the lines above say which is not. Prepare it
before the job, in a folder that all nodes see: python3 -m venv $VENV && $VENV/bin/pip install 'isojax[ray,cuda,verify]==0.1.0'
(in isojax's checkout: '.[ray,cuda,verify]')" >&2
    exit 2
fi
export PATH=$VENV/bin:$PATH
if [[ $1 != *.pack.tgz ]]; then
    pack "$SLURM_JOB_ID" "$@" || exit 2
    set -- "$packed"
fi
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$RUNS/.xla} # compiled programs, which the next job finds there

# Runs a command to its end; the SIGTERM that SLURM sends before the time is over reaches it.
heed() {
    local child code=0
    "$@" &
    child=$!
    trap 'kill -TERM $child' TERM
    wait "$child" || code=$?
    while kill -0 "$child" 2>/dev/null; do # it was the signal that ended the waiting
        code=0
        wait "$child" || code=$?
    done
    trap - TERM
    return "$code"
}

one() {
    export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
    heed srun --ntasks-per-node="$GPUS" isojax launch "$@" --resume --processes auto --mesh "${MESH:-fsdp=-1}" "run.dir=$RUNS"
}

over_ray() {
    local nodes others address each deadline=$((SECONDS + 300)) code=0
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    others=$((${#nodes[@]} - 1))
    HEAD=${HEAD:-$(hostname -I | cut -d ' ' -f 1)}
    address=$HEAD:$PORT
    each=(--ntasks-per-node=1 "--cpus-per-task=$((${SLURM_CPUS_PER_TASK:-1} * ${SLURM_NTASKS_PER_NODE:-1}))")
    RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n') # others on these nodes' network may not run code here
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
    trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
    srun --nodes=1 --ntasks=1 "${each[@]}" --nodelist="${nodes[0]}" \
        ray start --head --block --node-ip-address="$HEAD" --port="$PORT" --temp-dir="/tmp/ray-$SLURM_JOB_ID" &
    until ray status --address "$address" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "error: Ray's head did not start at $address within 300 s" >&2 && return 1; }
        sleep 1
    done
    if [ "$others" -gt 0 ]; then
        srun --nodes="$others" --ntasks="$others" "${each[@]}" --exclude="${nodes[0]}" ray start --block --address="$address" &
    fi
    heed isojax launch "$@" --resume --ray "$address" --mesh "${MESH:-fsdp=$GPUS}" "run.process_group.gpus=$GPUS" "run.dir=$RUNS" || code=$?
    return "$code"
}

case $MODE in
ray) over_ray "$@" ;;
one) one "$@" ;;
esac

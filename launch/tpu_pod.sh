#!/usr/bin/env bash
# Creates a Cloud TPU slice by gcloud if it does not exist, and starts or continues a sweep on it.
#
#   NFS=10.0.0.2:/runs launch/tpu_pod.sh run my.yaml      all hosts are one run: a mesh over every chip, cells one after the other
#   NFS=10.0.0.2:/runs launch/tpu_pod.sh ray my.yaml      Ray over the hosts: several cells at the same time, each on its own chips
#   HEAD=10.0.0.7 NAME=more launch/tpu_pod.sh join        another slice, for the Ray cluster whose head is at 10.0.0.7
#   launch/tpu_pod.sh status my                           shows the sweep's progress
#   launch/tpu_pod.sh stop                                runs save their state and end, then Ray ends; the slice stays
#   launch/tpu_pod.sh down                                deletes the slice; runs in NFS stay
#
# Further configs and key=value may follow CONFIG. Needs gcloud, with a project set. Start it in tmux: it runs as long as the sweep.
# If the connection or the slice is lost, run stop (or down) and the same command again; it continues from the newest checkpoints.
set -euo pipefail

NAME=${NAME:-isojax}                       # the slice's name
ZONE=${ZONE:-us-west4-a}                   # a zone that has these chips
ACCELERATOR=${ACCELERATOR:-v5litepod-16}   # the slice's type
VERSION=${VERSION:-v2-alpha-tpuv5-lite}    # the TPU software of that type
SPOT=${SPOT:-0}                            # 1: may be preempted, and costs less
QUEUED=${QUEUED:-0}                        # 1: wait in the queue for a slice
POLL=${POLL:-30}                           # seconds between looks at the queue
NFS=${NFS:-}                               # SERVER:/SHARE that all hosts mount at RUNS (Filestore); not needed for one host
RUNS=${RUNS:-/mnt/runs}                    # run.dir
SLICE=${SLICE:-v5e:4x4}                    # ray: the slice that a cell takes
HEAD=${HEAD:-}                             # join: the head's address
# shellcheck disable=SC2016  # the host's HOME
ISOJAX=${ISOJAX:-'isojax[ray,tpu] @ file://$HOME/isojax.tar.gz'} # what to install; by default the last commit of this checkout

usage() {
    sed -n '2,12p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//' >&2
    exit 2
}

# Runs a command in the shell of a host (0, 1, ...) or of all.
on() { gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker="$1" --command="export PATH=\$HOME/.isojax/bin:\$PATH; $2"; }
copy() { gcloud compute tpus tpu-vm scp "$1" "$NAME:$2" --zone="$ZONE" --worker=all; }
describe() { gcloud compute tpus "$1" describe "$NAME" --zone="$ZONE" --format="value($2)"; }

create() {
    local options=("--zone=$ZONE" "--accelerator-type=$ACCELERATOR" "--runtime-version=$VERSION")
    [ "$SPOT" = 0 ] || options+=(--spot)
    if [ "$QUEUED" = 0 ]; then
        gcloud compute tpus tpu-vm create "$NAME" "${options[@]}"
        return
    fi
    describe queued-resources name >/dev/null 2>&1 || gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" "${options[@]}"
    local state
    until state=$(describe queued-resources state.state) && [ "$state" = ACTIVE ]; do
        case $state in FAILED | SUSPEND*) echo "error: $NAME is $state; delete it by: $0 down" >&2 && exit 1 ;; esac
        sleep "$POLL"
    done
}

install() {
    if [[ $ISOJAX == *file://* ]]; then
        local folder
        folder=$(mktemp -d)
        git -C "$(dirname "${BASH_SOURCE[0]}")/.." archive --prefix=isojax/ --output="$folder/isojax.tar.gz" HEAD
        copy "$folder/isojax.tar.gz" isojax.tar.gz
        rm -r "$folder"
    fi
    on all "set -e; python3 -m pip install -q --user uv; uv='python3 -m uv'; [ -d ~/.isojax ] || \$uv venv -q --python 3.12 ~/.isojax
        \$uv pip install -q --python ~/.isojax --reinstall-package isojax \"$ISOJAX\""
    [ -z "$NFS" ] || on all "set -e; sudo mkdir -p $RUNS; mountpoint -q $RUNS || {
        sudo apt-get install -q -y nfs-common; sudo mount -t nfs $NFS $RUNS; sudo chmod a+rwx $RUNS; }"
}

up() {
    local state
    state=$(describe tpu-vm state 2>/dev/null) || create
    case ${state:-READY} in READY) ;; *) echo "error: $NAME is $state; delete it by: $0 down" >&2 && exit 1 ;; esac
    install
}

# A command for a host's shell; of its words, files of this machine are copied there first.
command_line() {
    local word
    for word in "$@"; do
        if [ -f "$word" ]; then
            copy "$word" "$(basename "$word")" >&2 || exit 1
            word=$(basename "$word")
        fi
        printf '%q ' "$word"
    done
}

join() { on all "case \" \$(hostname -I) \" in *' $HEAD '*) ;; *) ray stop; ray start --address=$HEAD:6379 ;; esac"; }

verb=${1:-}
[ "$#" -eq 0 ] || shift
case $verb in
run)
    [ "$#" -gt 0 ] || usage
    up
    line=$(command_line isojax launch "$@" --resume --processes auto --mesh "${MESH:-fsdp=-1}" "run.dir=$RUNS")
    on all "$line"
    ;;
ray)
    [ "$#" -gt 0 ] || usage
    up
    HEAD=$(describe tpu-vm 'networkEndpoints[0].ipAddress')
    line=$(command_line isojax launch "$@" --resume --ray auto --mesh "${MESH:-fsdp=16}" "run.process_group.tpu=$SLICE" "run.dir=$RUNS")
    on 0 "ray stop; ray start --head --node-ip-address=$HEAD --port=6379"
    join
    on 0 "$line"
    ;;
join)
    [ -n "$HEAD" ] || usage
    up
    join
    ;;
status)
    [ "$#" -eq 1 ] || usage
    on 0 "$(command_line isojax status "$RUNS/$1")"
    ;;
stop) on all "pkill -TERM -f '[b]in/isojax launch'; while pgrep -f '[b]in/isojax launch' >/dev/null; do sleep 1; done; ray stop" ;;
down)
    if [ "$QUEUED" = 0 ]; then
        gcloud compute tpus tpu-vm delete "$NAME" --zone="$ZONE" --quiet
    else
        gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
    fi
    ;;
*) usage ;;
esac

#!/usr/bin/env bash
# Creates a Cloud TPU slice by gcloud if it does not exist, and starts or continues a sweep on it.
#
#   PRICE=1.20 launch/tpu_pod.sh plan my.yaml             what would be created, what it costs, and whether the sweep fits; creates nothing
#   NFS=10.0.0.2:/runs launch/tpu_pod.sh run my.yaml      all hosts are one run: a mesh over every chip, cells one after the other
#   NFS=10.0.0.2:/runs launch/tpu_pod.sh ray my.yaml      Ray over the hosts: several cells at the same time, each on its own chips
#   HEAD=10.0.0.7 NAME=more launch/tpu_pod.sh join        another slice, for the Ray cluster whose head is at 10.0.0.7
#   launch/tpu_pod.sh status my                           shows the sweep's progress
#   launch/tpu_pod.sh stop                                runs save their state and end, then Ray ends; the slice stays, and costs
#   launch/tpu_pod.sh down                                deletes the slice; runs in NFS stay
#
# Further configs and key=value may follow CONFIG. run, ray and join ask before they create, down before it deletes; --yes answers them.
# Before it creates a slice, isojax on this machine reads the config and compiles its programs for the slice's chips (some minutes).
# Needs gcloud, with a project set. Start it in tmux: it runs as long as the sweep. docs/clusters.md: quota, disks, cost.
# If the connection or the slice is lost, run stop (or down) and the same command again; it continues from the newest checkpoints.
set -euo pipefail

NAME=${NAME:-isojax}                       # the slice's name
ZONE=${ZONE:-us-west4-a}                   # a zone that has these chips
SLICE=${SLICE:-v5e:4x4}                    # the slice's chips: v4, v5e, v5p or v6e, and their shape
SPOT=${SPOT:-0}                            # 1: may be preempted, and costs less
QUEUED=${QUEUED:-0}                        # 1: wait in the queue for a slice
POLL=${POLL:-30}                           # seconds between looks at the queue
PRICE=${PRICE:-}                           # of one chip for an hour, from https://cloud.google.com/tpu/pricing: plan shows the slice's
NETWORK=${NETWORK:-default}                # the slice's network: that of the share in NFS
NFS=${NFS:-}                               # SERVER:/SHARE that all hosts mount at RUNS (Filestore); not needed for one host
RUNS=${RUNS:-${NFS:+/mnt/}runs}            # run.dir: where NFS is mounted, or a folder in the host's home
HEAD=${HEAD:-}                             # join: the head's address
TOKEN=${TOKEN:-$HOME/.ray/auth_token}      # ray, join: the file of Ray's token, which is made if it does not exist
CHECK=${CHECK:-1}                          # 0: do not check the config before a slice is created
ISOJAX=${ISOJAX:-}                         # what to install: a wheel's file, or 'isojax[ray,tpu,verify]==0.1.0'; by default this checkout's last commit
CHECKOUT=$(dirname "${BASH_SOURCE[0]}")/..

fail() { echo "error: $2" >&2 && exit "$1"; }
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

case $SLICE in
v4:*) type=v4 cores=2 software=tpu-ubuntu2204-base ;;
v5e:*) type=v5litepod cores=1 software=v2-alpha-tpuv5-lite ;;
v5p:*) type=v5p cores=2 software=v2-alpha-tpuv5 ;;
v6e:*) type=v6e cores=1 software=v2-alpha-tpuv6e ;;
*) fail 2 "given SLICE=$SLICE, expected v4, v5e, v5p or v6e and a shape, such as v5e:4x4 or v5p:2x2x2" ;;
esac
shape=${SLICE#*:}
[[ $shape =~ ^[1-9][0-9]?(x[1-9][0-9]?){1,2}$ ]] || fail 2 "given SLICE=$SLICE, expected a shape such as 4x4 or 2x2x2 after the colon"
[[ $SPOT$QUEUED$CHECK =~ ^[01]{3}$ ]] || fail 2 "given SPOT=$SPOT QUEUED=$QUEUED CHECK=$CHECK, expected 0 or 1 for each"
[[ $PRICE =~ ^([0-9]*\.?[0-9]+)?$ ]] || fail 2 "given PRICE=$PRICE, expected a number: what one chip costs for an hour, such as 1.20"
chips=$((${shape//x/*}))
MESH=${MESH:-fsdp=$chips}                            # replaces the config's run.mesh
ACCELERATOR=${ACCELERATOR:-$type-$((chips * cores))} # the slice's type in the words of gcloud
VERSION=${VERSION:-$software}                        # the TPU software of that type

options=("--zone=$ZONE" "--accelerator-type=$ACCELERATOR" "--network=$NETWORK")
[ "$SPOT" = 0 ] || options+=(--spot)
if [ "$QUEUED" = 0 ]; then
    create=(gcloud compute tpus tpu-vm create "$NAME" "--version=$VERSION" "${options[@]}")
else
    create=(gcloud compute tpus queued-resources create "$NAME" "--node-id=$NAME" "--runtime-version=$VERSION" "${options[@]}")
fi

# Runs a command in the shell of a host (0, 1, ...) or of all.
on() { gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker="$1" --command="export PATH=\$HOME/.isojax/bin:\$PATH RAY_AUTH_MODE=token; $2"; }
copy() { gcloud compute tpus tpu-vm scp "$1" "$NAME:$2" --zone="$ZONE" --worker=all; }
describe() { gcloud compute tpus tpu-vm describe "$NAME" --zone="$ZONE" --format="value($1)"; }
queue_state() { gcloud compute tpus queued-resources describe "$NAME" --zone="$ZONE" --format="value(state.state)"; }

cost() {
    [ -n "$PRICE" ] || { echo "PRICE is not given" && return; }
    LC_ALL=C awk "BEGIN { printf \"%.2f an hour, %.0f a day\", $chips * $PRICE, 24 * $chips * $PRICE }"
}

plan() {
    local model="on demand" start="no queue" files="no share: enough for one host; give NFS=SERVER:/SHARE where there are several"
    [ "$SPOT" = 0 ] || model="spot, which may be preempted"
    [ "$QUEUED" = 0 ] || start="from the queue, when there is one"
    [ -z "$NFS" ] || files="$NFS, mounted at $RUNS"
    cat <<END
slice     $NAME in $ZONE
type      $SLICE, $chips chips ($ACCELERATOR, software $VERSION)
terms     $model; $start
cost      $(cost), from its creation until its deletion, whether it works or not
network   $NETWORK
files     $files
mesh      $MESH
command   ${create[*]}
END
}

# The config, the mesh and the memory, on this machine: what cannot run creates nothing.
check() {
    local isojax
    [ "$CHECK" = 1 ] || return 0
    isojax=$(command -v isojax || command -v "$CHECKOUT/.venv/bin/isojax") || fail 2 "no isojax on this machine to check the config with \
before a slice is created; install it (pip install 'isojax[tpu]', or -e '.[tpu]' in the checkout), or do without by CHECK=0"
    "$isojax" launch "$@" --dry-run --compile --topology "$SLICE" --mesh "$MESH" "run.dir=$RUNS" ||
        fail 2 "isojax refuses this sweep, for the reason above; no slice is created. CHECK=0 goes on without this check"
}

# What the hosts will install, before anything is created for it.
source_of_isojax() {
    case $ISOJAX in
    *://*) ;;
    *.whl) [ -f "$ISOJAX" ] || fail 2 "given ISOJAX=$ISOJAX, and there is no such file; expected isojax's wheel" ;;
    "")
        git -C "$CHECKOUT" cat-file -e HEAD:./isojax/__init__.py 2>/dev/null || fail 2 "this script is in no checkout of isojax whose \
last commit the hosts could install; expected ISOJAX='isojax[ray,tpu,verify]==0.1.0', or the file of a wheel: ISOJAX=isojax-0.1.0-py3-none-any.whl"
        ;;
    esac
}

confirm() {
    local answer
    [ "$yes" = 0 ] || return 0
    [ -t 0 ] || fail 2 "$1 There is no terminal to answer at; expected --yes to do it without a question"
    read -r -p "$1 [y/N] " answer || answer=
    [[ $answer == [yY]* ]] || fail 1 "not confirmed; nothing was changed"
}

remind() {
    echo "note: $NAME in $ZONE costs as long as it exists ($(cost)), whether it works or not. Delete it: NAME=$NAME ZONE=$ZONE $0 down" >&2
}

create() {
    local state
    if [ "$QUEUED" = 0 ] || ! queue_state >/dev/null 2>&1; then
        plan >&2
        if [ "$#" -gt 0 ]; then
            [ "$chips" -le 8 ] || [ -n "$NFS" ] || [ "$CHECK" = 0 ] || fail 2 "given no NFS, and $SLICE has several hosts, which must share \
the folder of the runs; expected NFS=SERVER:/SHARE, or CHECK=0 where they have $RUNS by other means"
            check "$@"
        fi
        confirm "Create it?"
        "${create[@]}" || fail 1 "gcloud did not create $NAME. Is anything there? gcloud compute tpus tpu-vm list --zone=$ZONE"
    fi
    [ "$QUEUED" = 1 ] || return 0
    trap remind EXIT
    until state=$(queue_state) && [ "$state" = ACTIVE ]; do
        case $state in FAILED | SUSPEND*) fail 1 "$NAME is $state; delete it by: $0 down" ;; esac
        sleep "$POLL"
    done
}

install() {
    local file=$ISOJAX requirement=$ISOJAX folder=
    if [ -z "$ISOJAX" ]; then
        folder=$(mktemp -d)
        file=$folder/isojax.tar.gz
        git -C "$CHECKOUT" archive --prefix=isojax/ --output="$file" HEAD
    fi
    if [ -f "$file" ]; then
        copy "$file" "${file##*/}"
        requirement="isojax[ray,tpu,verify] @ file://\$HOME/${file##*/}"
    fi
    [ -z "$folder" ] || rm -r "$folder"
    on all "set -e; python3 -m pip install -q --user uv; uv='python3 -m uv'; [ -d ~/.isojax ] || \$uv venv -q --python 3.12 ~/.isojax
        \$uv pip install -q --python ~/.isojax --reinstall-package isojax \"$requirement\""
    [ -z "$NFS" ] || on all "set -e; sudo mkdir -p $RUNS; mountpoint -q $RUNS || {
        sudo apt-get install -q -y nfs-common; sudo mount -t nfs $NFS $RUNS; sudo chmod a+rwx $RUNS; }"
}

# The slice, created for the sweep of these words if it is not there, and isojax on it.
up() {
    local state
    source_of_isojax
    command -v gcloud >/dev/null || fail 2 "no gcloud on this machine; it is part of Google Cloud's SDK, https://cloud.google.com/sdk"
    state=$(describe state 2>/dev/null) || state=
    [ -n "$state" ] || create "$@"
    case ${state:-READY} in READY) ;; *) fail 1 "$NAME is $state; delete it by: $0 down" ;; esac
    trap remind EXIT
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

# Ray serves nobody without this token, which its processes read on each host.
share_token() {
    [ -s "$TOKEN" ] || (umask 077 && mkdir -p "$(dirname "$TOKEN")" && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$TOKEN")
    on all "mkdir -p ~/.ray; chmod 700 ~/.ray"
    copy "$TOKEN" .ray/auth_token
}

join() { on all "case \" \$(hostname -I) \" in *' $HEAD '*) ;; *) ray stop; ray start --address=$HEAD:6379 ;; esac"; }

down() {
    local kind=queued-resources
    queue_state >/dev/null 2>&1 || { describe state >/dev/null && kind=tpu-vm; } || fail 1 "gcloud finds no $NAME in $ZONE; nothing was deleted"
    confirm "Delete $NAME in $ZONE and its hosts' disks? What is not in NFS or a bucket is lost."
    if [ "$kind" = tpu-vm ]; then
        gcloud compute tpus tpu-vm delete "$NAME" --zone="$ZONE" --quiet
    else
        gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
    fi
    cat >&2 <<END
$NAME is deleted. What stays, and goes on costing, until you delete it:
  shares ${NFS:+($NFS) }and the runs in them     gcloud filestore instances list
  other slices                      gcloud compute tpus tpu-vm list --zone=$ZONE
  requests in the queue             gcloud compute tpus queued-resources list --zone=$ZONE
END
}

verb=${1:-}
[ "$#" -eq 0 ] || shift
yes=0 words=()
for word in "$@"; do
    if [ "$word" = --yes ]; then yes=1; else words+=("$word"); fi
done
set -- ${words[@]+"${words[@]}"}
case "$verb $#" in
"plan "*)
    plan
    [ "$#" -eq 0 ] || { source_of_isojax && check "$@"; }
    ;;
"run "[1-9]*)
    up "$@"
    line=$(command_line isojax launch "$@" --resume --processes auto --mesh "$MESH" "run.dir=$RUNS")
    on all "$line"
    ;;
"ray "[1-9]*)
    up "$@"
    HEAD=$(describe 'networkEndpoints[0].ipAddress')
    line=$(command_line isojax launch "$@" --resume --no-compile --ray auto --mesh "$MESH" "run.process_group.tpu=$SLICE" "run.dir=$RUNS")
    share_token
    on 0 "ray stop; ray start --head --node-ip-address=$HEAD --port=6379"
    join
    on 0 "$line"
    ;;
"join 0")
    [ -n "$HEAD" ] || fail 2 "given no HEAD, expected the head's address: HEAD=10.0.0.7 NAME=more $0 join"
    up
    share_token
    join
    ;;
"status 1") on 0 "$(command_line isojax status "$RUNS/$1")" ;;
"stop 0")
    on all "pkill -TERM -f '[b]in/isojax launch'; while pgrep -f '[b]in/isojax launch' >/dev/null; do sleep 1; done; ray stop"
    remind
    ;;
"down 0") down ;;
"-h "* | "--help "*) usage ;;
*) usage >&2 && exit 2 ;;
esac

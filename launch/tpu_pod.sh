#!/usr/bin/env bash
# Creates a Cloud TPU slice by gcloud if it does not exist, and starts or continues a sweep on it.
#
#   PRICE=1.20 launch/tpu_pod.sh plan my.yaml             what would be created, what it costs, and whether the sweep fits; creates nothing
#   NFS=10.0.0.2:/runs launch/tpu_pod.sh run my.yaml      all hosts are one run: a mesh over every chip, cells one after the other
#   NFS=10.0.0.2:/runs launch/tpu_pod.sh ray my.yaml      Ray over the hosts: several cells at the same time, each on its own chips
#   HEAD=10.0.0.7 NAME=more launch/tpu_pod.sh join        another slice, for the Ray cluster whose head is at 10.0.0.7
#   launch/tpu_pod.sh run my.yaml --until-done --down     after a preemption, creates a slice again and goes on, until the sweep is done
#   launch/tpu_pod.sh status my                           shows the sweep's progress
#   launch/tpu_pod.sh stop                                runs save their state and end, then Ray ends; the slice stays, and costs
#   launch/tpu_pod.sh down                                deletes the slice; runs in NFS or a bucket stay
#
# Further configs and key=value may follow CONFIG. All that they refer to goes to the hosts in one file (isojax pack): plug-ins, reward files
# and what these import, problems, models of up to 2 GiB. What is not here, or is larger, is refused; what the hosts have is named by
# run.host_folders=[/mnt/models], or is below RUNS. run, ray and join ask before they create, down before it deletes; --yes answers them.
# --until-done (run, ray) goes on where the slice was preempted, or where a signal, run.time_limit or a lost connection ended the sweep. It
# ends where isojax refuses the config or fails, at `stop`, and after 3 attempts in a row that recorded nothing. --down then deletes the
# slice, but not after `stop`. QUEUED=1 waits for chips.
# Before it creates a slice, isojax on this machine packs the config and compiles its programs for the slice's chips (some minutes).
# Needs gcloud, with a project set. Start it in tmux: it runs as long as the sweep. docs/clusters.md: quota, disks, cost.
# If the connection or the slice is lost, the same command again (after a preemption, down first) continues from the newest checkpoints.
set -euo pipefail

NAME=${NAME:-isojax}                       # the slice's name
ZONE=${ZONE:-us-west4-a}                   # a zone that has these chips
SLICE=${SLICE:-v5e:4x4}                    # the slice's chips: v4, v5e, v5p or v6e, and their shape
SPOT=${SPOT:-0}                            # 1: may be preempted, and costs less
QUEUED=${QUEUED:-0}                        # 1: wait in the queue for a slice
VALID_FOR=${VALID_FOR:-}                   # QUEUED: how long the request is valid, such as 6h; by default for ever
RESERVED=${RESERVED:-0}                    # 1: of the project's reservation
POLL=${POLL:-30}                           # seconds between looks at the queue, and at a slice that may be lost
PRICE=${PRICE:-}                           # of one chip for an hour, from https://cloud.google.com/tpu/pricing: plan shows the slice's
NETWORK=${NETWORK:-default}                # the slice's network: that of the share in NFS
NFS=${NFS:-}                               # SERVER:/SHARE that all hosts mount at RUNS (Filestore); not needed for one host
BUCKET=${BUCKET:-}                         # in its place: the name of a bucket that all hosts mount at RUNS, by gcsfuse
SERVICE_ACCOUNT=${SERVICE_ACCOUNT:-}       # of the hosts, where the default one may not write to the bucket
SCOPES=${SCOPES:-}                         # of the hosts, such as cloud-platform
FLAGS=${FLAGS:-}                           # further flags of gcloud for a new slice, such as '--internal-ips --labels=team=rl'
RUNS=${RUNS:-${NFS:+/mnt/}${BUCKET:+/mnt/}runs} # run.dir: where NFS or BUCKET is mounted, gs://BUCKET/runs, or a folder in the host's home
HEAD=${HEAD:-}                             # join: the head's address
TOKEN=${TOKEN:-$HOME/.ray/auth_token}      # ray, join: the file of Ray's token, which is made if it does not exist
ATTEMPTS=${ATTEMPTS:-3}                    # --until-done: attempts in a row that record nothing, after which it ends
CHECK=${CHECK:-1}                          # 0: do not check the config before a slice is created
ISOJAX=${ISOJAX:-}                         # what to install: a wheel's file, or 'isojax[ray,tpu,verify]==0.1.0'; by default this checkout's last commit
CHECKOUT=$(dirname "${BASH_SOURCE[0]}")/..

fail() { echo "error: $2" >&2 && exit "$1"; }
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

case $SLICE in
v4:*) type=v4 cores=2 one_host=4 software=tpu-ubuntu2204-base ;;
v5e:*) type=v5litepod cores=1 one_host=8 software=v2-alpha-tpuv5-lite ;;
v5p:*) type=v5p cores=2 one_host=4 software=v2-alpha-tpuv5 ;;
v6e:*) type=v6e cores=1 one_host=8 software=v2-alpha-tpuv6e ;;
*) fail 2 "given SLICE=$SLICE, expected v4, v5e, v5p or v6e and a shape, such as v5e:4x4 or v5p:2x2x2" ;;
esac
shape=${SLICE#*:}
[[ $shape =~ ^[1-9][0-9]?(x[1-9][0-9]?){1,2}$ ]] || fail 2 "given SLICE=$SLICE, expected a shape such as 4x4 or 2x2x2 after the colon"
[[ $SPOT$QUEUED$RESERVED$CHECK =~ ^[01]{4}$ ]] ||
    fail 2 "given SPOT=$SPOT QUEUED=$QUEUED RESERVED=$RESERVED CHECK=$CHECK, expected 0 or 1 for each"
[ -z "$VALID_FOR" ] || [ "$QUEUED" = 1 ] || fail 2 "given VALID_FOR=$VALID_FOR without QUEUED=1, and only a request in the queue has a time"
[ -z "$NFS" ] || [ -z "$BUCKET" ] || fail 2 "given NFS=$NFS and BUCKET=$BUCKET, expected one of them, which is mounted at $RUNS"
[[ $PRICE =~ ^([0-9]*\.?[0-9]+)?$ ]] || fail 2 "given PRICE=$PRICE, expected a number: what one chip costs for an hour, such as 1.20"
chips=$((${shape//x/*}))
hosts=$((chips > one_host ? (chips + 3) / 4 : 1)) # as isojax/launch/tpu_hosts.py: several hosts have 4 chips each
shared=                                           # whether RUNS outlives the slice, and all hosts see it
[[ -z $NFS$BUCKET && $RUNS != *://* ]] || shared=1
extras=ray,tpu,verify
[[ $RUNS != gs://* ]] || extras+=,gcs
CACHE=${CACHE-${shared:+$RUNS/.xla}}              # where compiled programs are kept, so that a new slice need not compile for minutes
MESH=${MESH:-fsdp=$chips}                            # replaces the config's run.mesh
ACCELERATOR=${ACCELERATOR:-$type-$((chips * cores))} # the slice's type in the words of gcloud
VERSION=${VERSION:-$software}                        # the TPU software of that type

options=("--zone=$ZONE" "--accelerator-type=$ACCELERATOR" "--network=$NETWORK")
[ "$SPOT" = 0 ] || options+=(--spot)
[ "$RESERVED" = 0 ] || options+=(--reserved)
[ -z "$SERVICE_ACCOUNT" ] || options+=("--service-account=$SERVICE_ACCOUNT")
[ -z "$SCOPES" ] || options+=("--scopes=$SCOPES")
read -ra more_flags <<<"$FLAGS"
options+=(${more_flags[@]+"${more_flags[@]}"})
request=("--node-id=$NAME" "--runtime-version=$VERSION")
[ -z "$VALID_FOR" ] || request+=("--valid-until-duration=$VALID_FOR")
if [ "$QUEUED" = 0 ]; then
    create=(gcloud compute tpus tpu-vm create "$NAME" "--version=$VERSION" "${options[@]}")
else
    create=(gcloud compute tpus queued-resources create "$NAME" "${request[@]}" "${options[@]}")
fi

# What every command on a host begins with; processes of Ray have the environment with which it was started there.
# The coordinator's port is one that every slice's firewall opens; jax's own, 8482, is closed on some (jax issue 35905).
environment="export PATH=\$HOME/.isojax/bin:\$PATH RAY_AUTH_MODE=token JAX_COORDINATOR_PORT=8476${CACHE:+ JAX_COMPILATION_CACHE_DIR=$CACHE}"
# Ends the sweeps on a host, which save their state first.
end_sweeps="pkill -TERM -f '[b]in/isojax launch'; while pgrep -f '[b]in/isojax launch' >/dev/null; do sleep 1; done"

# Runs a command in the shell of a host (0, 1, ...) or of all. A host that no longer answers counts as lost after 5 minutes: code 255.
on() {
    gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker="$1" --ssh-flag=-oServerAliveInterval=30 --ssh-flag=-oServerAliveCountMax=10 \
        --command="$environment; $2"
}
copy() { gcloud compute tpus tpu-vm scp "$1" "$NAME:$2" --zone="$ZONE" --worker=all; }
describe() { gcloud compute tpus tpu-vm describe "$NAME" --zone="$ZONE" --format="value($1)"; }
slice_state() { describe state 2>/dev/null || true; } # nothing where there is no such slice
queue_state() { gcloud compute tpus queued-resources describe "$NAME" --zone="$ZONE" --format="value(state.state)"; }

cost() {
    [ -n "$PRICE" ] || { echo "PRICE is not given" && return; }
    LC_ALL=C awk "BEGIN { printf \"%.2f an hour, %.0f a day\", $chips * $PRICE, 24 * $chips * $PRICE }"
}

plan() {
    local model="on demand" start="no queue" files="no share: enough for one host; give NFS=SERVER:/SHARE or BUCKET=NAME where there are several"
    local host_word=hosts
    [ "$hosts" -gt 1 ] || host_word=host
    [ "$SPOT" = 0 ] || model="spot, which may be preempted"
    [ "$RESERVED" = 0 ] || model+=", of the reservation"
    [ "$QUEUED" = 0 ] || start="from the queue, when there is one${VALID_FOR:+ within $VALID_FOR}"
    [ -z "$shared" ] || files=$RUNS
    [ -z "$NFS$BUCKET" ] || files="${NFS:-gs://$BUCKET}, mounted at $RUNS"
    cat <<END
slice     $NAME in $ZONE
type      $SLICE, $chips chips on $hosts $host_word ($ACCELERATOR, software $VERSION)
terms     $model; $start
cost      $(cost), from its creation until its deletion, whether it works or not
network   $NETWORK
files     $files
compiled  programs are kept ${CACHE:+in }${CACHE:-on each host}
mesh      $MESH
command   ${create[*]}
END
}

isojax_here() {
    command -v isojax || command -v "$CHECKOUT/.venv/bin/isojax" || fail 2 "no isojax on this machine, which finds what the config refers \
to, and checks it, before a slice is created; install it (pip install 'isojax[tpu]', or -e '.[tpu]' in the checkout)"
}

# All that the config of these words refers to, in the file $packed: what is not here creates nothing.
pack() {
    local isojax
    source_of_isojax
    isojax=$(isojax_here)
    packed=${XDG_CACHE_HOME:-$HOME/.cache}/isojax/$NAME.pack.tgz # overwritten each time; the hosts have their copies
    mkdir -p "${packed%/*}"
    "$isojax" pack "$@" "run.dir=$RUNS" --mesh "$MESH" --out "$packed" ||
        fail 2 "isojax refuses this sweep, for the reason above; no slice is created"
}

# The config, the mesh and the memory, on this machine, from the pack: what cannot run creates nothing.
check() {
    local isojax
    [ "$CHECK" = 1 ] || return 0
    isojax=$(isojax_here)
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
        [ -z "$(git -C "$CHECKOUT" status --porcelain -- isojax)" ] ||
            echo "note: isojax/ in this checkout is not as in its last commit, which the hosts install" >&2
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
            [ "$hosts" = 1 ] || [ -n "$shared" ] || [ "$CHECK" = 0 ] || fail 2 "given no NFS, and $SLICE has several hosts, which must share \
the folder of the runs; expected NFS=SERVER:/SHARE or BUCKET=NAME, or CHECK=0 where they have $RUNS by other means"
            check "$@"
        fi
        confirm "Create it?"
        "${create[@]}" || fail 1 "gcloud did not create $NAME. Is anything there? gcloud compute tpus tpu-vm list --zone=$ZONE"
    fi
    [ "$QUEUED" = 1 ] || return 0
    [ "$until_done" = 1 ] || trap remind EXIT
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
        requirement="isojax[$extras] @ file://\$HOME/${file##*/}"
    fi
    [ -z "$folder" ] || rm -r "$folder"
    on all "set -e; python3 -m pip install -q --user uv; uv='python3 -m uv'; [ -d ~/.isojax ] || \$uv venv -q --python 3.12 ~/.isojax
        \$uv pip install -q --python ~/.isojax --reinstall-package isojax \"$requirement\""
}

# Mounts the share or the bucket on all hosts. isojax looks itself, before a sweep begins, whether files there can be locked, renamed and
# appended to. Without gcsfuse's caches a host sees at once what another one has written.
mount_runs() {
    [ -z "$NFS" ] || on all "set -e; sudo mkdir -p $RUNS; mountpoint -q $RUNS || {
        sudo apt-get install -q -y nfs-common; sudo mount -t nfs $NFS $RUNS; sudo chmod a+rwx $RUNS; }"
    [ -z "$BUCKET" ] || on all "set -e; sudo mkdir -p $RUNS; mountpoint -q $RUNS || {
        command -v gcsfuse >/dev/null || {
            curl -sS https://packages.cloud.google.com/apt/doc/apt-key.gpg | sudo tee /usr/share/keyrings/cloud.google.asc >/dev/null
            echo \"deb [signed-by=/usr/share/keyrings/cloud.google.asc] https://packages.cloud.google.com/apt gcsfuse-\$(lsb_release -c -s) main\" |
                sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
            sudo apt-get update -q && sudo apt-get install -q -y gcsfuse; }
        sudo gcsfuse -o allow_other --file-mode=666 --dir-mode=777 --implicit-dirs --rename-dir-limit=100000 --stat-cache-ttl=0 \
            --type-cache-ttl=0 $BUCKET $RUNS; }"
}

# A pack on all hosts, and the packages that its plug-ins need.
send() {
    copy "$1" "${1##*/}"
    on all "set -e; tar -xzOf ${1##*/} requirements.txt >requirements.txt
        [ ! -s requirements.txt ] || python3 -m uv pip install -q --python ~/.isojax -r requirements.txt"
}

# The slice, created for the sweep of this pack if it is not there, and isojax on it.
up() {
    local state
    source_of_isojax
    command -v gcloud >/dev/null || fail 2 "no gcloud on this machine; it is part of Google Cloud's SDK, https://cloud.google.com/sdk"
    state=$(slice_state)
    [ -n "$state" ] || create "$@"
    case ${state:-READY} in READY) ;; *) fail 1 "$NAME is $state; delete it by: $0 down" ;; esac
    [ "$until_done" = 1 ] || trap remind EXIT
    install
    mount_runs
    [ "$#" -eq 0 ] || send "$1"
}

# A command for a host's shell; a pack among its words is in the host's home.
command_line() {
    local word
    for word in "$@"; do
        [ "$word" != "${packed:-}" ] || word=${packed##*/}
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

# The slice, and the request for it in the queue.
delete_slice() {
    if queue_state >/dev/null 2>&1; then
        gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
    elif [ -n "$(slice_state)" ]; then
        gcloud compute tpus tpu-vm delete "$NAME" --zone="$ZONE" --quiet
    fi
}

down() {
    queue_state >/dev/null 2>&1 || describe state >/dev/null || fail 1 "gcloud finds no $NAME in $ZONE; nothing was deleted"
    confirm "Delete $NAME in $ZONE and its hosts' disks? What is not in NFS or a bucket is lost."
    delete_slice
    cat >&2 <<END
$NAME is deleted. What stays, and goes on costing, until you delete it:
  shares ${NFS:+($NFS) }and the runs in them     gcloud filestore instances list
  buckets ${BUCKET:+($BUCKET) }and the runs in them
  other slices                      gcloud compute tpus tpu-vm list --zone=$ZONE
  requests in the queue             gcloud compute tpus queued-resources list --zone=$ZONE
END
}

# All hosts are one run. Words after the pack go to isojax, as those of ray.
start_run() {
    local line
    line=$(command_line isojax launch "$@" --resume --processes auto --mesh "$MESH" "run.dir=$RUNS")
    on all "rm -f ~/.isojax/stopped; $end_sweeps; $line"
}

# Ray over the hosts; the sweep's driver is on the first one.
start_ray() {
    local line
    HEAD=$(describe 'networkEndpoints[0].ipAddress')
    line=$(command_line isojax launch "$@" --resume --no-compile --ray auto --mesh "$MESH" "run.process_group.tpu=$SLICE" "run.dir=$RUNS")
    share_token
    on 0 "rm -f ~/.isojax/stopped; $end_sweeps; ray stop; ray start --head --node-ip-address=$HEAD --port=6379"
    join
    on 0 "$line"
}

# Runs a function in a shell of its own, where a command that fails ends the function, not this script; sets `code` to its exit code.
attempt() {
    set +e
    (set -e; "$@")
    code=$?
    set -e
}

# Creates the slice, and runs the sweep there or goes on with it, again and again until it is done or nothing more can be hoped for.
until_done() {
    local verb=$1 unprepared=0 state code end
    shift
    [ -n "$shared" ] || [ "$CHECK" = 0 ] || fail 2 "given --until-done without NFS or BUCKET: a slice that is preempted takes its disks with \
it; expected NFS=SERVER:/SHARE, BUCKET=NAME or RUNS=gs://BUCKET/runs; or CHECK=0 where $RUNS is on such a disk by other means"
    trap remind EXIT
    while :; do
        attempt up "$@"
        if [ "$code" = 0 ]; then
            unprepared=0 CHECK=0 yes=1 # what was checked and answered once need not be again
            attempt "start_$verb" "$@" "run.max_idle_starts=$ATTEMPTS"
        else
            unprepared=$((unprepared + 1))
        fi
        state=$(slice_state)
        # Where a host is preempted, isojax may fail on the others before gcloud knows of it.
        [ "$code $state" != "1 READY" ] || { sleep "$POLL" && state=$(slice_state); }
        end=
        case "$code $state" in # exit codes of isojax: docs/faults.md
        "0 "*) end="the sweep is done" ;;
        "2 "*) end="refused, for the reason above" ;;
        # Another process was lost, a signal or the time limit ended the sweep, or the connection broke.
        "75 READY" | "134 READY" | "137 READY" | "143 READY" | "255 READY")
            ! on 0 "[ -e ~/.isojax/stopped ]" || fail "$code" "ended by: $0 stop"
            ;;
        *" READY") end="failed, for the reason above" ;;
        *) delete_slice || end="the slice is $state and cannot be deleted" ;;
        esac
        [ "$unprepared" -lt "$ATTEMPTS" ] || end=${end:-"no slice could be prepared in $ATTEMPTS attempts; QUEUED=1 waits for one"}
        echo "note: $(date '+%F %T'): exit code $code, the slice is ${state:-gone}: ${end:-going on}" >&2
        [ -z "$end" ] || break
        [ "$unprepared" = 0 ] || sleep "$POLL"
    done
    if [ "$delete_at_end" = 1 ]; then
        delete_slice
        trap - EXIT
    fi
    exit "$code"
}

verb=${1:-}
[ "$#" -eq 0 ] || shift
yes=0 until_done=0 delete_at_end=0 words=()
for word in "$@"; do
    case $word in
    --yes) yes=1 ;;
    --until-done) until_done=1 ;;
    --down) delete_at_end=1 ;;
    *) words+=("$word") ;;
    esac
done
[ "$delete_at_end" -le "$until_done" ] || fail 2 "given --down without --until-done, expected both; or: $0 down"
set -- ${words[@]+"${words[@]}"}
case "$verb $until_done $#" in
"plan 0 "*)
    plan
    [ "$#" -eq 0 ] || {
        pack "$@"
        check "$packed"
    }
    ;;
"run 1 "[1-9]* | "ray 1 "[1-9]*)
    pack "$@" >&2
    until_done "$verb" "$packed"
    ;;
"run 0 "[1-9]* | "ray 0 "[1-9]*)
    pack "$@" >&2
    up "$packed"
    "start_$verb" "$packed"
    ;;
"join 0 0")
    [ -n "$HEAD" ] || fail 2 "given no HEAD, expected the head's address: HEAD=10.0.0.7 NAME=more $0 join"
    up
    share_token
    join
    ;;
"status 0 1") on 0 "$(command_line isojax status "$RUNS/$1")" ;;
"stop 0 0")
    on all "touch ~/.isojax/stopped; $end_sweeps; ray stop" # the mark ends --until-done
    remind
    ;;
"down 0 0") down ;;
"-h "* | "--help "*) usage ;;
*) usage >&2 && exit 2 ;;
esac

#!/usr/bin/env bash
# Runs a command, or a shell, in the first node (NODE=2: in the second), where kubectl, helm, ctr and every pod's
# address are at hand: enter.sh [COMMAND...]
set -eu
. "$(dirname "$(realpath "$0")")/places.sh"
[ -e "$data/ready" ] || die "no cluster runs on $data"
n=${NODE:-1}
[ $# -gt 0 ] || set -- bash
into() { nsenter -m -n -p -i -u --wdns="$PWD" -t $(cat "/proc/$1/task/$1/children") -- "${@:2}"; }
export PATH=$(cat "$data/bin"):$tools:$PATH KUBECONFIG=$data/kubeconfig KUBECACHEDIR=$data/kubectl
if [ "$n" = 1 ]; then into "$(cat "$data/pid")" "$@"
else into "$(cat "$data/pid")" bash -c "$(declare -f into)"'; into "$(cat "/run/node-$0.pid")" "$@"' "$n" "$@"; fi

#!/usr/bin/env bash
# Starts a Kubernetes of NODES nodes (default 1) with GPUS fake GPUs each (default 2), every node in namespaces of its
# own (mount, network, process, IPC, host name), and returns when all are Ready. Builds what is missing. Needs root.
# RH_CLUSTER is the folder of its data. CONTROL_ARGS are more flags for `devcluster up`. down.sh stops it, and a
# later up.sh goes on from the same data; enter.sh runs a command in the first node.
set -eu
. "$(dirname "$(realpath "$0")")/places.sh"
"$here/check.sh"
bin=$("$here/build.sh")
mkdir -p "$data"
cgroup=devnode-$(printf %s "$data" | cksum | cut -d' ' -f1)
[ ! -e "/sys/fs/cgroup/pids/$cgroup" ] || die "already running, or not stopped by down.sh: $data"
export NODES=${NODES:-1} GPUS=${GPUS:-2}
mkdir -p "$data/control"
echo "$bin" >"$data/bin"
echo "$cgroup" >"$data/cgroup"
rm -f "$data/ready" "$data/failed" "$data/control/ready"
for n in $(seq "$NODES"); do
  node=$data/node-$n
  mkdir -p "$node"/{log,config/cni,var/lib,var/log}
  for f in containerd.toml kubelet.yaml kube-proxy.yaml cni/10-node.conflist; do
    sed "s|@DATA@|$data|; s|@NODE@|$node|; s|@BIN@|$bin|; s|@CGROUP@|$cgroup/node-$n|; s|@N@|$n|" "$here/config/$f" >"$node/config/$f"
  done
done
# In every hierarchy a group of its own, and below it one for each kubelet's pods and one for the nodes' processes.
for c in /sys/fs/cgroup/*/; do
  for g in "$cgroup" "$cgroup/node" $(printf "$cgroup/node-%d " $(seq "$NODES")); do
    mkdir -p "$c$g"
    for f in cpuset.cpus cpuset.mems; do [ ! -f "$c$f" ] || cat "$c$f" >"$c$g/$f"; done
  done
done
(
  for c in /sys/fs/cgroup/*/; do echo "$BASHPID" >"$c$cgroup/node/cgroup.procs"; done
  exec setsid unshare --mount --net --pid --ipc --uts --fork --kill-child --mount-proc "$here/init.sh" "$data" 1 \
    </dev/null >"$data/node-1/log/init.log" 2>&1
) &
echo $! >"$data/pid"
for _ in $(seq 1200); do
  [ ! -e "$data/ready" ] || exit 0
  [ ! -e "$data/failed" ] && kill -0 "$(cat "$data/pid")" 2>/dev/null || break
  sleep 0.1
done
tail -n 5 "$data"/node-*/log/init.log >&2 || true
"$here/down.sh"
die "not ready; see $data/node-*/log"

#!/usr/bin/env bash
# Stops what up.sh started, at any moment of its life, and removes its cgroups. No process is asked: all that are in
# the cluster's cgroups are killed. The data stay (etcd's survive that), and up.sh goes on from them.
set -u
. "$(dirname "$(realpath "$0")")/places.sh"
cgroup=$(cat "$data/cgroup" 2>/dev/null) || exit 0
procs() { find "/sys/fs/cgroup/pids/$cgroup" -name cgroup.procs -exec cat {} + 2>/dev/null; }
for _ in $(seq 200); do
  pids=$(procs)
  [ -n "$pids" ] || break
  # shellcheck disable=SC2086
  kill -KILL $pids 2>/dev/null
  sleep 0.05
done
for _ in $(seq 50); do
  find /sys/fs/cgroup/*/"$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null
  compgen -G "/sys/fs/cgroup/*/$cgroup" >/dev/null || { rm -f "$data/pid" "$data/ready" "$data/forward.pid"; exit 0; }
  sleep 0.1
done
die "cgroups $cgroup are still there"

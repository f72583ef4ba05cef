#!/usr/bin/env bash
# Says why this machine cannot run the cluster, and fails; says nothing when it can.
set -u
why=()
[ "$(uname -s)" = Linux ] || why+=("it needs Linux")
[ "$(id -u)" = 0 ] || why+=("it needs root")
[ -d /sys/fs/cgroup/pids ] && [ -d /sys/fs/cgroup/memory ] ||
  why+=("it is made for cgroup v1 or hybrid, and /sys/fs/cgroup has no v1 hierarchies: use make kind")
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || why+=("the kernel has no overlay file system")
unshare --mount --net --pid --ipc --uts --fork true 2>/dev/null || why+=("namespaces cannot be made (unshare fails)")
[ ${#why[@]} = 0 ] && exit
printf 'no cluster can run on this machine: %s\n' "${why[@]}" >&2
exit 1

# Sourced by the scripts here: where things are. RH_CACHE moves everything, RH_CLUSTER one cluster.
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
cache=${RH_CACHE:-$HOME/.cache/roundhouse}
data=$(realpath -m "${RH_CLUSTER:-$cache/cluster}")
tools=$cache/tools/bin
die() { echo "$(basename "$0"): $*" >&2; exit 1; }

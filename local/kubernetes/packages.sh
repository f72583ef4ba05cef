#!/usr/bin/env bash
# Installs what cluster and images need from the distribution (Debian 12 or Ubuntu): packages.sh. Needs root; does
# nothing when all is there. Go 1.26 is needed besides, until build.sh has built once.
set -euo pipefail
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need buildah buildah       # images
need debootstrap debootstrap
need runc runc             # containers
need nft nftables          # Services
need iptables iptables     # hostPort
need ip iproute2
need nsenter util-linux
[ ${#missing[@]} = 0 ] && exit
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null

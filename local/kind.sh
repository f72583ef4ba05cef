#!/usr/bin/env bash
# A kind cluster with our images and the chart in it: kind.sh KUBECONFIG. Needs Docker and kind.
# `kind delete cluster --name roundhouse` removes it.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
kubeconfig=$1 name=roundhouse images=(operator gateway agent sim)
export PATH=${RH_CACHE:-$HOME/.cache/roundhouse}/tools/bin:$PATH KUBECONFIG=$kubeconfig
mkdir -p "$(dirname "$kubeconfig")"
kind get clusters | grep -qx $name || kind create cluster --name $name
BUILDER=docker REGISTRY=localhost TAG=dev images/build.sh "${images[@]}"
for image in "${images[@]}"; do
  kind load docker-image --name $name "localhost/roundhouse-$image:dev"
done
helm upgrade --install roundhouse charts/roundhouse --namespace roundhouse --create-namespace --wait --timeout 5m \
  --set image.registry=localhost,image.tag=dev

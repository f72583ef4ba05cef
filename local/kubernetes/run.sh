#!/usr/bin/env bash
# Kubernetes with Roundhouse in it, serving EXAMPLE: run.sh [EXAMPLE.yaml]. Goes on where an earlier run stopped.
# Leaves the cluster running; PORT (8080) and API_PORT (6443) of this machine's loopback lead to gateway and API server.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/places.sh"
root=$(realpath "$here/../..")
example=$(realpath "${1:-$root/examples/smollm2.yaml}") port=${PORT:-8080} api_port=${API_PORT:-6443}
enter() { "$here/enter.sh" "$@"; }
step() { printf '%4ss  %s\n' "$SECONDS" "$*"; }
# image_id NAME: the tag stays the same, so this is what replaces pods when their image has changed
image_id() { sed 's/.* //' "$data/node-1/imported-$1" | cut -c1-12; }
SECONDS=0

step "Kubernetes"
[ -e "$data/ready" ] || "$here/up.sh"
step "images"
images=(operator gateway agent valkey)
grep -q 'name: *sim' "$example" && images+=(sim) || images+=(engine)
"$here/images.sh" "${images[@]}"
"$here/import.sh" "${images[@]}"
step "model"
"${PYTHON:-python3}" "$here/models.py" "$example" "$cache/models"
step "chart"
enter helm upgrade --install roundhouse "$root/charts/roundhouse" --namespace roundhouse --create-namespace --wait --timeout 2m \
  --values "$here/values.yaml" --set engines.modelCacheHostPath="$cache/models" \
  --set-string operator.podAnnotations.image="$(image_id operator)",gateway.podAnnotations.image="$(image_id gateway)" >/dev/null
step "$(basename "$example")"
enter kubectl apply --filename "$example"
enter kubectl wait --for=condition=Ready --timeout=10m --filename "$example"
enter kubectl get infsvc,erep,pods

# The forwards are of the cluster's cgroup, so down.sh ends them too.
gateway=$(enter kubectl --namespace roundhouse get service roundhouse-gateway --output 'jsonpath={.spec.clusterIP}')
[ ! -e "$data/forward.pid" ] || kill "$(cat "$data/forward.pid")" 2>/dev/null || true
rm -f "$data/forward.log"
(
  for c in /sys/fs/cgroup/*/; do echo "$BASHPID" >"$c$(cat "$data/cgroup")/node/cgroup.procs"; done
  exec setsid "${PYTHON:-python3}" "$here/forward.py" "$(cat "$data/pid")" "$port=$gateway:8080" "$api_port=10.200.0.1:6443" \
    </dev/null >"$data/forward.log" 2>&1
) &
echo $! >"$data/forward.pid"
until grep -q ready "$data/forward.log" 2>/dev/null; do
  kill -0 "$(cat "$data/forward.pid")" 2>/dev/null || { cat "$data/forward.log" >&2; exit 1; }
  sleep 0.1
done
sed "s|https://10.200.0.1:6443|https://127.0.0.1:$api_port|" "$data/kubeconfig" >"$data/host.kubeconfig"

model=$(enter kubectl get --filename "$example" --output 'jsonpath={.metadata.name}{.items[0].metadata.name}')
cat <<EOF

curl http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "$model", "messages": [{"role": "user", "content": "Hello"}]}'

Inside, with kubectl, helm and curl:  $(realpath --relative-to="$PWD" "$here")/enter.sh
From here:                            export KUBECONFIG=$data/host.kubeconfig
To stop it:                           make stop-cluster
EOF

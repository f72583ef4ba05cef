"""API keys from a Secret, on gateways that go on running."""

import sys

from tests.cluster.kube import Kube, eventually, run
from tests.cluster.release import Answer, Release, ask
from tests.cluster.services import uids


def make_key(kube: Kube, release: Release, name: str) -> str:
    """As README and NOTES say; the new key itself is what is told aside."""
    script = f"import sys; sys.argv = {['roundhouse', 'keys', 'create', name, '-n', release.namespace]!r}; "
    script += "from roundhouse_local.__main__ import main; sys.stderr = sys.stdout; sys.exit(main())"
    secret, _, told = run(sys.executable, "-c", script).partition(f"The key of {name}, told only now: ")
    kube.kubectl("apply", "--server-side", f"--field-manager=key-{name}", "--filename", "-", stdin=secret)
    return told.strip()


def models(release: Release, key: str = "") -> Answer:
    return ask(f"{release.url()}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})


def test_keys_come_and_go_without_a_restart(kube: Kube, release: Release) -> None:
    alice = make_key(kube, release, "alice")
    release.install("--set", "auth.existingSecret=roundhouse-keys")
    gateways = uids(release.pods("gateway"))
    eventually(lambda: all(models(release).status == 401 for _ in range(6)))  # the gateways of before have left
    refused = models(release)
    assert (refused.status, refused.body["error"]["code"]) == (401, "invalid_api_key")
    assert models(release, alice + "x").status == 401
    assert models(release, alice).status == 200
    bob = make_key(kube, release, "bob")
    eventually(lambda: all(models(release, bob).status == 200 for _ in range(6)), within=120)
    assert models(release, alice).status == 200
    patch = '[{"op": "remove", "path": "/data/alice"}]'
    kube.kubectl("patch", "secret", "roundhouse-keys", "-n", release.namespace, "--type=json", "--patch", patch)
    eventually(lambda: all(models(release, alice).status == 401 for _ in range(6)), within=120)
    assert models(release, bob).status == 200
    assert uids(release.pods("gateway")) == gateways
    for pod in release.pods("gateway"):
        log = kube.kubectl("logs", pod["metadata"]["name"], "--namespace", release.namespace)
        assert "api_keys_loaded" in log
        assert not [key for key in (alice, bob) if key in log]

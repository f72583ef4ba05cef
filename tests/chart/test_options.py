"""What single values change."""

from typing import Any

from tests.chart.rendering import CHART, Obj, args_of, find, helm, of_kind, render, render_text


def env_of(deployment: Obj) -> dict[str, Any]:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return {e["name"]: e.get("value") or e["valueFrom"] for e in container["env"]}


def rules_of(objects: list[Obj], kind: str) -> list[Any]:
    return [rule for o in of_kind(objects, kind) for rule in o["rules"]]


def test_long_names_are_cut_so_that_every_object_fits() -> None:
    objects = render(release="a" * 53)
    assert max(len(o["metadata"]["name"]) for o in of_kind(objects, "Deployment", "StatefulSet")) <= 61


def test_a_release_named_after_the_chart_is_not_named_twice() -> None:
    assert find(render(release="roundhouse"), "Deployment", "roundhouse-operator")


def test_two_releases_in_one_cluster_share_no_name() -> None:
    def names(release: str, namespace: str) -> set[tuple[str, str, str]]:
        objects = render("--set", "crds.install=false", release=release, namespace=namespace)
        return {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]) for o in objects}

    assert not names("rh", "a") & names("rh", "b")
    assert not names("rh", "a") & names("other", "a")


def test_cluster_wide_rights_by_default() -> None:
    objects = render()
    assert len(of_kind(objects, "ClusterRole")) == len(of_kind(objects, "ClusterRoleBinding")) == 1
    assert not any(
        a.startswith("--watch-namespace") for a in args_of(find(objects, "Deployment", "rh-roundhouse-operator"))
    )


def test_watched_namespaces_get_roles_and_nothing_is_cluster_wide() -> None:
    objects = render("--set", "watchNamespaces={team-a,team-b}", "--set", "crds.install=false")
    assert not [o for o in objects if o["kind"].startswith("Cluster")]
    assert {o["metadata"]["namespace"] for o in of_kind(objects, "Role")} == {"serving", "team-a", "team-b"}
    args = args_of(find(objects, "Deployment", "rh-roundhouse-operator"))
    assert {"--watch-namespace=team-a", "--watch-namespace=team-b"} <= set(args)


def test_rights_are_no_wildcards_and_reach_no_nodes() -> None:
    rules = [*rules_of(render(), "ClusterRole"), *rules_of(render(), "Role")]
    words = {word for rule in rules for key in ("apiGroups", "resources", "verbs") for word in rule[key]}
    assert not words & {
        "*",
        "nodes",
        "namespaces",
        "pods/exec",
        "customresourcedefinitions",
        "escalate",
        "bind",
        "impersonate",
    }


def test_secrets_are_not_listed_and_only_our_own_are_changed() -> None:
    for rule in [*rules_of(render(), "ClusterRole"), *rules_of(render(), "Role")]:
        if "secrets" in rule["resources"]:
            assert not {"list", "watch"} & set(rule["verbs"])
            assert "resourceNames" in rule or set(rule["verbs"]) <= {"get", "create"}


def test_without_rbac_no_role_is_made() -> None:
    kinds = {o["kind"] for o in render("--set", "operator.rbac.create=false")}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def test_crds_are_kept_or_not_or_not_installed() -> None:
    policy = "helm.sh/resource-policy"
    source = {path.name for path in (CHART / "files" / "crds").glob("*.yaml")}
    kept = of_kind(render(), "CustomResourceDefinition")
    assert len(kept) == len(source)
    assert all(crd["metadata"]["annotations"][policy] == "keep" for crd in kept)
    loose = of_kind(render("--set", "crds.keep=false"), "CustomResourceDefinition")
    assert all(policy not in crd["metadata"].get("annotations", {}) for crd in loose)
    assert not of_kind(render("--set", "crds.install=false"), "CustomResourceDefinition")


def test_image_registry_and_tag_hold_for_all_images() -> None:
    text = render_text("--set", "image.registry=registry.local/rh,image.tag=v7")
    for name in ("operator", "gateway", "agent", "engine", "sim"):
        assert f"registry.local/rh/roundhouse-{name}:v7" in text


def test_an_image_of_its_own_beats_the_common_tag() -> None:
    objects = render("--set", "image.tag=v7,gateway.image.tag=v8")
    gateway = find(objects, "Deployment", "rh-roundhouse-gateway")
    assert gateway["spec"]["template"]["spec"]["containers"][0]["image"] == "roundhouse-gateway:v8"


def test_external_redis_replaces_valkey() -> None:
    values = str(CHART / "ci" / "external-redis-values.yaml")
    objects = render("--values", values)
    assert not of_kind(objects, "StatefulSet")
    gateway = find(objects, "Deployment", "rh-roundhouse-gateway")
    assert "--redis-url=rediss://redis.example.com:6380/0" in args_of(gateway)
    env = env_of(gateway)
    assert env["RH_REDIS_USERNAME"] == "roundhouse"
    assert env["RH_REDIS_PASSWORD"] == {"secretKeyRef": {"name": "redis-password", "key": "pw"}}


def test_no_password_is_in_the_render() -> None:
    assert not of_kind(render(), "Secret")


def test_api_keys_are_mounted_from_the_secret() -> None:
    gateway = find(render("--set", "auth.existingSecret=keys"), "Deployment", "rh-roundhouse-gateway")
    assert {"name": "keys", "secret": {"secretName": "keys"}} in gateway["spec"]["template"]["spec"]["volumes"]
    assert "--api-keys=/etc/roundhouse/keys" in args_of(gateway)


def test_an_autoscaled_gateway_has_no_fixed_replicas() -> None:
    objects = render("--set", "gateway.autoscaling.enabled=true")
    assert "replicas" not in find(objects, "Deployment", "rh-roundhouse-gateway")["spec"]
    assert find(objects, "HorizontalPodAutoscaler", "rh-roundhouse-gateway")


def test_switches_leave_their_objects_out() -> None:
    kinds = {
        o["kind"]
        for o in render("--set", "networkPolicies.enabled=false,operator.pdb.enabled=false,gateway.pdb.enabled=false")
    }
    assert not kinds & {"NetworkPolicy", "PodDisruptionBudget"}


def test_no_monitoring_object_by_default() -> None:
    assert not of_kind(render(), "ServiceMonitor", "PodMonitor", "PrometheusRule")


def test_the_notes_hold_the_first_curl() -> None:
    notes = helm("install", "rh", str(CHART), "--namespace", "serving", "--dry-run=client")
    assert "curl http://127.0.0.1:8080/v1/chat/completions" in notes
    assert "kubectl -n serving port-forward service/rh-roundhouse-gateway 8080" in notes


def test_the_chart_carries_the_generated_crds() -> None:
    generated, carried = CHART.parents[1] / "crds", CHART / "files" / "crds"
    assert {p.name: p.read_text() for p in carried.iterdir()} == {p.name: p.read_text() for p in generated.iterdir()}


def test_valkey_is_not_looked_for_in_our_registry() -> None:
    objects = render("--set", "image.registry=registry.local/rh,image.tag=v7")
    valkey = find(objects, "StatefulSet", "rh-roundhouse-valkey")
    assert valkey["spec"]["template"]["spec"]["containers"][0]["image"].startswith("valkey/valkey:")

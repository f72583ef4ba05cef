from pathlib import Path

import pytest
from roundhouse_agent.errors import BadSettings
from roundhouse_agent.settings import FetchSettings, ServeSettings

SERVE = {
    "RH_INSTALLATION": "local", "RH_NAMESPACE": "default", "RH_SERVICE": "demo", "RH_REPLICA": "demo-abcde",
    "RH_REPLICA_UID": "u-1", "RH_ENGINE": "torch", "RH_ENGINE_MODEL": "demo", "RH_MODEL_PATH": "/models/demo",
    "RH_REDIS_URL": "redis://127.0.0.1:6379/0", "RH_REDIS_PASSWORD": "secret", "POD_IP": "127.3.2.1",
    "POD_UID": "6b1f2a3c-0000-4000-8000-000000000001", "RUN_DIR": "/run/roundhouse",
}  # fmt: skip
FETCH = {"RH_MODEL": "hf://a/b", "RH_MODEL_CACHE": "/models", "RH_MODEL_PATH": "/models/a-b", "POD_IP": "10.0.0.7"}


def test_serve_reads_what_the_operator_gives() -> None:
    settings = ServeSettings.from_env({**SERVE, "RH_DRAIN_SECONDS": "45"})
    assert (settings.engine, settings.model_path, settings.drain_seconds) == ("torch", Path("/models/demo"), 45.0)
    assert settings.kv_events == "ipc:///run/roundhouse/kv-events.sock"
    assert settings.redis.password == "secret"
    assert "secret" not in repr(settings)


def test_an_engine_without_a_model_has_no_model_path() -> None:
    assert ServeSettings.from_env({**SERVE, "RH_MODEL_PATH": ""}).model_path is None


@pytest.mark.parametrize("name", [name for name in SERVE if name not in ("RH_MODEL_PATH", "RH_REDIS_PASSWORD")])
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(BadSettings, match=name):
        ServeSettings.from_env({key: value for key, value in SERVE.items() if key != name})


@pytest.mark.parametrize(
    "change", [{"RH_ENGINE": "llamacpp"}, {"POD_UID": "pod"}, {"RH_DRAIN_SECONDS": "soon"}, {"RH_DRAIN_SECONDS": "-1"}]
)
def test_an_unreadable_variable_is_named(change: dict[str, str]) -> None:
    with pytest.raises(BadSettings, match=next(iter(change))):
        ServeSettings.from_env({**SERVE, **change})


def test_fetch_reads_what_the_operator_gives() -> None:
    settings = FetchSettings.from_env({**FETCH, "HF_TOKEN": "hf_secret"})
    assert settings is not None
    assert settings.progress_url == "http://10.0.0.7:9090/progress"
    assert "hf_secret" not in repr(settings)


def test_no_model_path_means_nothing_to_fetch() -> None:
    assert FetchSettings.from_env({"RH_ENGINE": "sim"}) is None


@pytest.mark.parametrize("path", ["/elsewhere/x", "/models"])
def test_a_model_folder_outside_the_cache_is_refused(path: str) -> None:
    with pytest.raises(BadSettings, match="RH_MODEL_PATH"):
        FetchSettings.from_env({**FETCH, "RH_MODEL_PATH": path})

"""The command line, and what the process tells of itself."""

import json
import logging

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from roundhouse_operator.errors import BadSettings
from roundhouse_operator.logs import JsonFormatter, set_up_logs
from roundhouse_operator.metrics import OperatorCollector
from roundhouse_operator.options import crd_folder, parse_options
from roundhouse_operator.probes import serve_probes

NEEDED = ["--installation", "ns/rh", "--redis-url", "redis://r:6379/0"]


def test_everything_that_can_be_said() -> None:
    arguments = [
        *NEEDED, "--lease=op", "--redis-secret=pw", "--watch-namespace=a", "--watch-namespace=b", "--watch-namespace=a",
        "--gateway-url=http://gw/", "--agent-image=agent:1", "--engine-image=torch=engine:1",
        "--engine-image=vllm=x/v:2",
        "--model-cache=/models", "--port=1", "--log-level=DEBUG", "--workers=9",
    ]  # fmt: skip
    env = {"POD_NAMESPACE": "ns", "POD_NAME": "op-0", "RH_REDIS_USERNAME": "u", "RH_REDIS_PASSWORD": "p"}
    options = parse_options(arguments, env)
    settings = options.settings
    assert (settings.installation, settings.redis_url) == ("ns/rh", "redis://r:6379/0")
    assert (settings.redis_username, settings.redis_password) == ("u", "p")
    assert settings.namespaces == ("a", "b")
    assert settings.gateway_url == "http://gw/v1"
    assert [settings.image(part) for part in ("agent", "torch", "vllm", "sim")] == [
        "agent:1", "engine:1", "x/v:2", "roundhouse-sim",
    ]  # fmt: skip
    assert (settings.default_cache_path, settings.workers) == ("/models", 9)
    election = options.election
    assert (election.namespace, election.name, election.identity) == ("ns", "op", "op-0")
    assert (options.redis_secret, options.port, options.log_level) == ("pw", 1, "DEBUG")


def test_defaults() -> None:
    options = parse_options(NEEDED, {})
    assert options.settings.namespaces == ()
    assert options.settings.gateway_url == ""
    assert (options.election.namespace, options.election.name) == ("default", "roundhouse-operator")
    assert options.election.identity


def test_the_password_is_never_shown() -> None:
    assert "hunter2" not in repr(parse_options(NEEDED, {"RH_REDIS_PASSWORD": "hunter2"}))


@pytest.mark.parametrize("text", ["torch", "llama=x", "torch="])
def test_a_wrong_engine_image_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BadSettings, match="KIND=IMAGE"):
        parse_options([*NEEDED, "--engine-image", text], {})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(SystemExit):
        parse_options([*NEEDED, "--instalation", "x"], {})


def test_render_crds_is_a_command_of_its_own() -> None:
    assert str(crd_folder(["render-crds", "x"])) == "x"
    assert crd_folder(NEEDED) is None
    assert crd_folder([]) is None


def test_log_lines_are_json_with_the_events_fields(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.root.handlers[:], logging.root.level
    try:
        set_up_logs("INFO")
        logging.getLogger("x").info("service_gone", extra={"service": "ns/a"})
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("x").exception("crashed")
    finally:
        logging.root.handlers[:], level = before[0], before[1]
        logging.root.setLevel(level)
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["event"], first["service"], first["level"]) == ("service_gone", "ns/a", "INFO")
    assert "ValueError: broken" in second["exception"]


def test_what_json_cannot_say_is_written_as_text() -> None:
    record = logging.makeLogRecord({"msg": "x", "what": {1}})
    assert json.loads(JsonFormatter().format(record))["what"] == "{1}"


async def test_probes_and_metrics_are_served() -> None:
    wrong = ""
    registry = CollectorRegistry()
    registry.register(OperatorCollector(lambda: None))
    async with (
        serve_probes(0, alive=lambda: wrong, registry=registry, host="127.0.0.1") as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        async with session.get("/healthz") as response:
            assert response.status == 200
        wrong = "the election does not turn"
        async with session.get("/healthz") as response:
            assert (response.status, await response.text()) == (503, wrong)
        async with session.get("/readyz") as response:
            assert response.status == 200
        async with session.get("/metrics") as response:
            assert "roundhouse_operator_leading 0.0" in await response.text()


def test_metrics_of_a_standby_are_few() -> None:
    registry = CollectorRegistry()
    registry.register(OperatorCollector(lambda: None))
    assert b"queue_depth" not in generate_latest(registry)

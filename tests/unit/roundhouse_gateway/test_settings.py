"""The command line: defaults, options, and clear refusals."""

from dataclasses import fields
from pathlib import Path

import pytest
from roundhouse_gateway.errors import BadSettings
from roundhouse_gateway.settings import Limits, Patience, Settings, parse_settings


def test_defaults_are_the_settings_own() -> None:
    assert parse_settings([], {}) == Settings()
    assert Settings().admin_address == ("0.0.0.0", 8081)


def test_every_setting_has_an_option() -> None:
    argv = [
        "--host",
        "::1",
        "--port",
        "9000",
        "--admin-port",
        "9100",
        "--admin-host",
        "127.0.0.1",
        "--installation",
        "ns/rel",
    ]
    argv += [
        "--redis-url",
        "unix:///run/r.sock",
        "--catalogue-file",
        "/tmp/c.json",
        "--drain-timeout",
        "5",
        "--api-keys",
        "/k",
    ]
    argv += ["--no-explain-headers", "--log-level", "DEBUG"]
    for group in (Limits, Patience):
        for f in fields(group):
            argv += ["--" + f.name.removesuffix("_s").replace("_", "-"), "7"]
    settings = parse_settings(argv, {"RH_REDIS_USERNAME": "u", "RH_REDIS_PASSWORD": "p"})
    assert (settings.host, settings.port, settings.admin_address) == ("::1", 9000, ("127.0.0.1", 9100))
    assert (settings.installation, settings.redis_url) == ("ns/rel", "unix:///run/r.sock")
    assert (settings.catalogue_file, settings.drain_timeout_s) == (Path("/tmp/c.json"), 5.0)
    assert settings.api_keys == Path("/k")
    assert (settings.explain_headers, settings.log_level) == (False, "DEBUG")
    assert (settings.redis_username, settings.redis_password) == ("u", "p")
    assert all(getattr(settings.limits, f.name) == 7 for f in fields(Limits))
    assert all(getattr(settings.patience, f.name) == 7 for f in fields(Patience))


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(parse_settings([], {"RH_REDIS_PASSWORD": "hunter2"}))


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--port", "70000"], "--port"),
        (["--admin-port", "-1"], "--admin-port"),
        (["--port", "9000", "--admin-port", "9000"], "--admin-port"),
        (["--installation", ""], "--installation"),
        (["--redis-url", "http://x"], "--redis-url"),
        (["--log-level", "LOUD"], "--log-level"),
        (["--body-bytes", "0"], "--body-bytes"),
        (["--first-event", "-3"], "--first-event"),
        (["--drain-timeout", "-1"], "--drain-timeout"),
    ],
)
def test_what_cannot_be_used_is_named(argv: list[str], named: str) -> None:
    with pytest.raises(BadSettings, match=named):
        parse_settings(argv, {})

import json
from pathlib import Path

import pytest

from benchmarks.gateway.nginx import write_config
from benchmarks.harness import print_result, quick


def test_the_result_is_one_json_line_with_the_fixed_fields(capsys: pytest.CaptureFixture[str]) -> None:
    print_result("gateway", {"nginx": "1.0"}, {"event_cpu_us": {"roundhouse": 1.5, "nginx": 1.0}})
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert list(result) == ["bench", "commit", "versions", "machine", "date", "figures"]
    assert result["figures"] == {"event_cpu_us": {"roundhouse": 1.5, "nginx": 1.0}}
    assert result["versions"]["nginx"] == "1.0"
    assert "cores" in result["machine"]


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_quick_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("QUICK", value)
    assert quick() is expected


def test_nginx_keeps_everything_under_its_folder(tmp_path: Path) -> None:
    config = write_config(tmp_path / "nginx", 1234, [1, 2], root=False).read_text()
    assert "listen 127.0.0.1:1234;" in config
    assert "server 127.0.0.1:1; server 127.0.0.1:2;" in config
    assert "user" not in config.replace("uwsgi", "")
    assert all(str(tmp_path) in line for line in config.splitlines() if "_temp_path" in line or "pid" in line)

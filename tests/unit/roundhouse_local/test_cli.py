import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from roundhouse_local.cli import logs, objects
from roundhouse_local.cli.parser import make_parser
from roundhouse_local.cli.up import up_settings
from roundhouse_local.errors import UserError


def options(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(arguments)


class Supervisor:
    """Answers one way and remembers what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: dict[str, Any] = {}

    def __call__(self, **request: Any) -> Any:
        self.asked = request
        return self.answer


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (["a"], [("infsvc", "a")]),
        (["erep", "a", "b"], [("erep", "a"), ("erep", "b")]),
        (["erep/a", "b"], [("erep", "a"), ("infsvc", "b")]),
        (["pods/a"], [("pods", "a")]),
    ],
)
def test_delete_takes_names_with_and_without_a_kind(arguments: list[str], want: list[tuple[str, str]]) -> None:
    supervisor = Supervisor([])
    assert objects.run_delete(options("delete", *arguments, "-n", "ns"), supervisor) == 0
    assert [(t["kind"], t["name"]) for t in supervisor.asked["targets"]] == want
    assert {t["namespace"] for t in supervisor.asked["targets"]} == {"ns"}


def test_one_refusal_among_many_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    supervisor = Supervisor([{"line": "infsvc/a deleted"}, {"error": "b not found"}])
    assert objects.run_delete(options("delete", "infsvc", "a", "b"), supervisor) == 1
    out = capsys.readouterr()
    assert (out.out, out.err) == ("infsvc/a deleted\n", "roundhouse: b not found\n")


OBJECT = {"kind": "InferenceService", "metadata": {"name": "a"}}


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        ([], "NAME\na\n"),
        (["-o", "name"], "inferenceservice/a\n"),
        (["-o", "yaml"], "apiVersion: v1\nkind: List\nitems:\n- kind: InferenceService\n  metadata:\n    name: a\n"),
    ],
)
def test_get_prints_what_was_asked_for(capsys: pytest.CaptureFixture[str], flags: list[str], want: str) -> None:
    answer = {"objects": [OBJECT], "lines": ["NAME", "a"], "kind": "InferenceService"}
    assert objects.run_get(options("get", *flags), Supervisor(answer)) == 0
    assert capsys.readouterr().out == want


def test_get_of_one_object_prints_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"objects": [OBJECT], "lines": [], "kind": "InferenceService"}
    objects.run_get(options("get", "infsvc", "a", "-o", "json"), Supervisor(answer))
    assert capsys.readouterr().out.startswith('{\n  "kind": "InferenceService"')


def test_get_of_nothing_says_where_it_looked(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = Supervisor({"objects": [], "lines": [], "kind": "Pod"})
    assert objects.run_get(options("get", "pods", "-n", "ns"), nothing) == 0
    assert capsys.readouterr().err == "No Pod found in namespace ns.\n"
    objects.run_get(options("get", "pods", "-A"), nothing)
    assert nothing.asked["namespace"] is None


def test_logs_prints_the_present_or_the_previous_life(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (0, 1):
        (tmp_path / f"{number}.log").write_text(f"life {number}\nend {number}\n")
    supervisor = Supervisor({"files": [str(tmp_path / "0.log"), str(tmp_path / "1.log")], "container": "engine"})
    logs.run_logs(options("logs", "r"), supervisor)
    logs.run_logs(options("logs", "r", "-p", "--tail", "1"), supervisor)
    logs.run_logs(options("logs", "r", "--tail", "0"), supervisor)
    assert capsys.readouterr().out == "life 1\nend 1\nend 0\n"


@pytest.mark.parametrize(
    ("files", "flags", "message"),
    [
        ([], [], "has not been started yet"),
        (["0.log"], ["-p"], "has not been restarted: there is no previous log"),
        ([], ["-p"], "there is no previous log"),
    ],
)
def test_logs_that_are_not_there_are_told(files: list[str], flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        logs.run_logs(options("logs", "r", *flags), Supervisor({"files": files, "container": "engine"}))


def test_following_goes_on_with_the_next_life_and_after_a_shortening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "0.log", tmp_path / "1.log"
    first.write_text("old\n")
    steps = iter(
        [
            lambda: first.open("a").write("new\n"),
            lambda: first.write_text("x\n"),
            lambda: second.write_text("next life\n"),
            lambda: None,
        ]
    )
    monkeypatch.setattr(logs.time, "sleep", lambda _: next(steps, lambda: None)())
    where = lambda: ([str(path) for path in (first, second) if path.exists()], "engine")  # noqa: E731
    found = list(islice(logs._follow(first, 4, where), 3))
    assert found == ["new\n", "x\n", "next life\n"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gateways", "0"], "--gateways 0: must be at least 1"),
        (["--port", "-1"], "--port -1: must be at least 1"),
        (["--gpus", "-1"], "--gpus -1"),
        (["--stop-timeout", "-1"], "--stop-timeout -1: must not be negative"),
        (["--stop-timeout", "nan"], "--stop-timeout nan: must be a number of seconds"),
        (["--stop-timeout", "inf"], "--stop-timeout inf: must be a number of seconds"),
    ],
)
def test_flags_out_of_range_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        up_settings(options("up", *flags))


def test_ports_of_gateways_are_a_hundred_apart() -> None:
    assert up_settings(options("up", "--port", "9000", "--gateways", "3")).gateway_ports() == [9000, 9100, 9200]


def test_url_is_one_that_a_client_can_use() -> None:
    assert up_settings(options("up", "--host", "0.0.0.0")).url == "http://127.0.0.1:8080"

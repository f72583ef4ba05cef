"""How a local run ends, and how it does not begin."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.local.local_run import SIM, local_run, run_cli, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("local_up")]


def test_run_stopped_before_it_was_ready_does_not_claim_to_be_ready(home: Path) -> None:
    never = SIM.replace("--step-seconds=0.05", "--no-such-option")
    with local_run(home, never, wait_for="CrashLoop") as run:
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 0
        assert run.left() == []
    assert "Ready after" not in run.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_everything_in_order(home: Path, number: signal.Signals) -> None:
    with local_run(home, SIM) as run:
        run.process.send_signal(number)
        assert run.wait() == 0
        assert run.left() == []
    assert run.output.rstrip().endswith("Stopped.")
    log = (home / "logs" / "supervisor.log").read_text()
    assert "ERROR" not in log
    assert log.count("container_ended") == 4


def test_killed_supervisor_leaves_no_process(home: Path) -> None:
    with local_run(home, SIM) as run:
        assert len(run.left()) >= 8
        run.process.kill()
        run.wait()
        wait_until(lambda: not run.left(), lambda: run.left(), deadline_s=5)
    with local_run(home, SIM):
        pass


def test_killed_warden_ends_the_run_with_a_line(home: Path) -> None:
    with local_run(home, SIM) as run:
        warden = next(p for p in run.family if any(part.endswith("warden.py") for part in p.cmdline()))
        os.kill(warden.pid, signal.SIGKILL)
        assert run.wait() == 1
        wait_until(lambda: not run.left(), lambda: run.left(), deadline_s=5)
    assert "watches over all others was killed" in run.output
    assert "Traceback" not in run.output


def test_second_signal_kills_at_once(home: Path) -> None:
    slow = SIM.replace("0.05", "0.5").replace("timeoutSeconds: 5", "timeoutSeconds: 600")
    with local_run(home, slow, "--stop-timeout", "30") as run:
        url = f"{run.urls[0]}/v1/chat/completions"
        body = '{"model":"demo","stream":true,"messages":[{"role":"user","content":"x"}],"max_tokens":1000}'
        client = subprocess.Popen(["curl", "-sN", url, "-H", "content-type: application/json", "-d", body],
                                  stdout=subprocess.PIPE)  # fmt: skip
        assert client.stdout is not None
        assert client.stdout.readline()
        run.process.send_signal(signal.SIGINT)
        wait_until(lambda: "Stopping" in run.output)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(5) == 130
        client.wait(10)
        wait_until(lambda: not run.left(), lambda: run.left(), deadline_s=5)


def test_stop_is_bounded_although_a_stream_goes_on(home: Path) -> None:
    slow = SIM.replace("0.05", "0.5").replace("timeoutSeconds: 5", "timeoutSeconds: 600")
    with local_run(home, slow, "--stop-timeout", "1") as run:
        url = f"{run.urls[0]}/v1/chat/completions"
        body = '{"model":"demo","stream":true,"messages":[{"role":"user","content":"x"}],"max_tokens":10000}'
        client = subprocess.Popen(["curl", "-sN", url, "-H", "content-type: application/json", "-d", body],
                                  stdout=subprocess.PIPE)  # fmt: skip
        assert client.stdout is not None
        assert client.stdout.readline()
        run.process.send_signal(signal.SIGINT)
        rest = client.stdout.read().decode()
        assert run.process.wait(25) == 0
        client.wait(5)
        assert run.left() == []
    assert "[DONE]" not in rest
    assert '"error"' in rest


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("a: b: c", 2, "service.yaml, line 1, column 5: not valid YAML"),
        (SIM.replace("replicas: 2", "replicas: two"), 2, "spec.replicas"),
        (SIM.replace("engine:", "engin:"), 2, 'unknown field "spec.engin"; did you mean engine?'),
    ],
)
def test_bad_file_starts_nothing(home: Path, text: str, code: int, message: str) -> None:
    (home / "service.yaml").write_text(text)
    done = run_cli("up", "-f", str(home / "service.yaml"), home=home)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (home / "logs").exists()


def test_unusable_home_is_told(home: Path) -> None:
    (home / "file").touch()
    done = run_cli("up", home=home / "file" / "x")
    assert (done.returncode, "choose another folder with --home" in done.stderr) == (1, True)


def test_commands_without_a_run_say_how_to_start_one(home: Path) -> None:
    done = run_cli("get", home=home)
    assert (done.returncode, "roundhouse up -f FILE" in done.stderr) == (1, True)


def test_crash_looping_engine_is_shown_with_its_last_words(home: Path) -> None:
    broken = SIM.replace("--step-seconds=0.05", '"--fail-start=no such device"').replace("replicas: 2", "replicas: 1")
    with local_run(home, broken, wait_for="no such device") as run:

        def told() -> bool:
            conditions = run.objects("infsvc")[0].get("status", {}).get("conditions", [])
            return any("no such device" in c.get("message", "") for c in conditions if c["status"] == "False")

        wait_until(told, lambda: run.objects("infsvc")[0])
        assert run.ready_replicas() == 0


def test_render_crds_writes_what_is_in_the_repository(home: Path) -> None:
    done = run_cli("render-crds", str(home / "crds"), home=home)
    assert done.returncode == 0
    written = {path.name: path.read_text() for path in (home / "crds").iterdir()}
    repository = Path(__file__).parents[3] / "crds"
    assert written == {path.name: path.read_text() for path in repository.iterdir() if path.suffix == ".yaml"}


def test_help_names_every_command() -> None:
    done = run_cli("--help", home=Path("/nonexistent"))
    assert done.returncode == 0
    for command in ("up", "get", "apply", "delete", "logs", "explain", "render-crds"):
        assert command in done.stdout

import asyncio
import socket
from pathlib import Path

import pytest
from roundhouse_local.errors import ImageError, StartError
from roundhouse_local.kubelet.addresses import AddressPool, busy_port
from roundhouse_local.kubelet.backoff import Backoff, BackoffRule
from roundhouse_local.kubelet.gpus import GpuShelf
from roundhouse_local.kubelet.ignored import ignored_fields
from roundhouse_local.kubelet.images import Image, ImageTable, repository
from roundhouse_local.kubelet.logs import shorten, tail, termination_message
from roundhouse_local.kubelet.probes import Outcome, ProbeRule, Verdict, run_probe


def test_back_off_starts_at_nothing_doubles_and_is_limited() -> None:
    backoff = Backoff(BackoffRule())
    assert [backoff.delay(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]


def test_back_off_is_forgotten_after_a_long_run() -> None:
    backoff = Backoff(BackoffRule())
    for _ in range(4):
        backoff.delay(1)
    assert backoff.delay(601) == 0


def rule(**fields: float) -> ProbeRule:
    return ProbeRule.of({"periodSeconds": 0.001, "timeoutSeconds": 0.05, **fields})


def test_probe_defaults_are_those_of_kubernetes() -> None:
    assert ProbeRule.of({}) == ProbeRule(0, 10, 1, 1, 3, None)


def test_verdict_needs_results_in_a_row() -> None:
    verdict = Verdict(rule(failureThreshold=2, successThreshold=2))
    feeds = [(False, None), (True, None), (True, True), (False, True), (True, True), (False, True), (False, False)]
    for ok, want in feeds:
        verdict.feed(ok)
        assert verdict.ok is want


async def test_probe_that_only_needs_one_success_ends() -> None:
    answers = iter([False, False, True])
    told: list[bool] = []

    async def check(_: float) -> Outcome:
        return Outcome(next(answers))

    await run_probe(rule(failureThreshold=2), check, lambda outcome: told.append(outcome.ok), once=True)
    assert told == [False, True]


async def test_check_that_hangs_has_failed() -> None:
    told: asyncio.Queue[Outcome] = asyncio.Queue()

    async def check(_: float) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(run_probe(rule(failureThreshold=1), check, told.put_nowait))
    first = await told.get()
    task.cancel()
    assert first == Outcome(False, "no answer within 0.05 s")


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("x", "x"),
        ("x:1", "x"),
        ("reg:5000/a/x", "x"),
        ("reg:5000/a/x:1@sha256:00", "x"),
        ("vllm/vllm-openai:v0.20", "vllm-openai"),
    ],
)
def test_image_is_known_by_the_end_of_its_repository(reference: str, name: str) -> None:
    assert repository(reference) == name


def test_image_without_its_program_says_what_to_install() -> None:
    table = ImageTable({"x": Image(("x",), needs_program="no-such-program", remedy="install it")})
    with pytest.raises(ImageError, match="needs the program no-such-program, which is not installed: install it"):
        table.resolve("x:1")
    table = ImageTable({"x": Image(("x",), needs_module="no_such_module", remedy="install it")})
    with pytest.raises(ImageError, match="Python module no_such_module"):
        table.resolve("x:1")


def test_an_image_with_an_environment_of_its_own_runs_its_programs_and_not_our_packages(tmp_path: Path) -> None:
    image = Image(("python3",), needs_module="engine", remedy="make it", venv=tmp_path)
    with pytest.raises(ImageError, match="Python module engine, which is not installed: make it"):
        ImageTable({"x": image}).resolve("x:1")
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "engine"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert ImageTable({"x": image}).resolve("x:1") is image
    assert image.environment({"PATH": "/bin", "PYTHONPATH": "/ours", "HOME": "/h"}) == {
        "PATH": f"{tmp_path}/bin:/bin",
        "HOME": "/h",
    }


def test_scripts_run_the_images_program(tmp_path: Path) -> None:
    ImageTable({"x": Image(("/a b/python", "-m", "y"))}).write_scripts(tmp_path)
    assert (tmp_path / "x").read_text() == "#!/bin/sh\nexec '/a b/python' -m y \"$@\"\n"
    assert (tmp_path / "x").stat().st_mode & 0o111


def test_addresses_differ_and_avoid_busy_ports() -> None:
    pool = AddressPool(block=150)
    first = pool.take([])
    with socket.socket() as taken:
        taken.bind((pool.take([]), 0))
        taken.listen()
        address, port = taken.getsockname()
        assert busy_port(address, [port]) == port
        again = AddressPool(block=150)
        assert [again.take([port]) for _ in range(2)][-1] not in (first, address)


def test_port_that_is_taken_everywhere_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with pytest.raises(StartError, match=r"some program listens on 0\.0\.0\.0"):
            AddressPool().take([taken.getsockname()[1]])


def test_last_words_come_from_the_file_or_on_error_from_the_log(tmp_path: Path) -> None:
    words, log = tmp_path / "words", tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(200)))
    assert termination_message(words, log, policy="File", failed=True) == ""
    assert termination_message(words, log, policy="FallbackToLogsOnError", failed=False) == ""
    message = termination_message(words, log, policy="FallbackToLogsOnError", failed=True)
    assert message.splitlines() == [f"line {i}" for i in range(120, 200)]
    words.write_text("x" * 5000)
    assert termination_message(words, log, policy="File", failed=True) == "x" * 4096


def test_tail_is_limited_by_bytes_too(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * 5000)
    assert tail(tmp_path / "log") == "x" * 2048
    assert tail(tmp_path / "none") == ""


def test_log_over_its_limit_is_moved_aside_and_its_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    with path.open("a") as writer:
        writer.write("old\n" * 10)
        writer.flush()
        assert shorten(path, 10)
        writer.write("new\n")
    assert path.read_text() == "new\n"
    assert (tmp_path / "0.log.1").read_text() == "old\n" * 10
    assert not shorten(path, 10)


def test_pods_share_no_gpu_and_give_them_back() -> None:
    shelf = GpuShelf(3)
    pods = {uid: _gpu_pod(uid, count) for uid, count in {"a": 2, "b": 1, "c": 0}.items()}
    for pod in pods.values():
        shelf.take(pod)
    assert [shelf.environment(pod)["CUDA_VISIBLE_DEVICES"] for pod in pods.values()] == ["0,1", "2", ""]
    shelf.give_back("a")
    shelf.take(_gpu_pod("d", 2))
    assert shelf.environment(_gpu_pod("d", 2))["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_fields_that_mean_nothing_here_are_named() -> None:
    mount = {"name": "v", "readOnly": True}
    spec = {
        "securityContext": {"runAsUser": 1},
        "tolerations": [],
        "containers": [{"name": "a", "resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": 1}}}],
        "initContainers": [{"name": "b", "securityContext": {"x": 1}, "volumeMounts": [mount]}],
    }
    assert ignored_fields(spec) == {
        "securityContext",
        "containers[].resources.limits.memory",
        "containers[].securityContext",
        "containers[].volumeMounts[].readOnly",
    }


def _gpu_pod(uid: str, count: int) -> dict[str, object]:
    container = {"name": "x", "resources": {"limits": {"nvidia.com/gpu": count}}}
    return {"metadata": {"uid": uid}, "spec": {"containers": [container]}}

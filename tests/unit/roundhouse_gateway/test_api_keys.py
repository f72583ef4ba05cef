"""Who is admitted by API keys, what becomes of the key, and how changes of the folder arrive."""

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest
from roundhouse_gateway import api_keys
from roundhouse_gateway.api_keys import ApiKeys, hash_line
from roundhouse_gateway.client_request import ClientHead
from roundhouse_gateway.errors import ApiError, BadSettings

from tests.unit.roundhouse_gateway.fakes import Bench, FakeTransport, member, post

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
ALICE = b"rh-alice-0123456789"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "alice").write_text(hash_line(ALICE) + "\n")
    return tmp_path


def head(*lines: bytes) -> ClientHead:
    return ClientHead(b"POST", b"/v1/completions", b"".join(line + b"\r\n" for line in lines), True, True)


def refused(keys: ApiKeys, *lines: bytes) -> str:
    with pytest.raises(ApiError) as error:
        keys.admit(head(*lines))
    assert (error.value.status, error.value.code) == (401, "invalid_api_key")
    return error.value.message


@pytest.mark.parametrize("line", [b"Authorization: Bearer " + ALICE, b"authorization: bearer  " + ALICE + b" "])
def test_a_known_key_is_admitted_under_its_name(folder: Path, line: bytes) -> None:
    assert ApiKeys(folder).admit(head(b"accept: */*", line)) == "alice"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"authorization: Bearer "],
        [b"authorization: " + ALICE],
        [b"authorization: Basic " + ALICE],
        [b"authorization: Bearer " + ALICE + b"x"],
        [b"authorization: Bearer " + ALICE[:-1]],
        [b"authorization: Bearer " + hash_line(ALICE).encode()],
        [b"authorization: Bearer " + ALICE, b"authorization: Bearer " + ALICE],
        [b"x-authorization: Bearer " + ALICE],
        [b"x: y authorization: Bearer " + ALICE],
    ],
)
def test_anything_else_is_refused_without_the_key_in_the_message(folder: Path, lines: list[bytes]) -> None:
    assert ALICE.decode() not in refused(ApiKeys(folder), *lines)


def test_the_key_is_not_forwarded(folder: Path) -> None:
    request = head(b"accept: */*", b"Authorization: Bearer " + ALICE, b"x-a: b")
    ApiKeys(folder).admit(request)
    assert request.lines == b"accept: */*\r\nx-a: b\r\n"


def test_a_file_may_hold_two_keys_while_one_replaces_the_other(folder: Path) -> None:
    (folder / "alice").write_text(f"# old and new\n{hash_line(ALICE)}\n{hash_line(b'new')}\n")
    keys = ApiKeys(folder)
    assert {keys.admit(head(b"authorization: Bearer " + key)) for key in (ALICE, b"new")} == {"alice"}


def test_an_empty_folder_admits_nobody(tmp_path: Path) -> None:
    refused(ApiKeys(tmp_path), b"authorization: Bearer " + ALICE)


def test_a_folder_that_is_not_there_is_a_bad_setting(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"--api-keys .*nowhere: No such file"):
        ApiKeys(tmp_path / "nowhere")


def test_a_line_that_is_no_hash_admits_nobody_and_is_not_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "bob").write_text("rh-plain-key\n")
    keys = ApiKeys(folder)
    refused(keys, b"authorization: Bearer rh-plain-key")
    assert keys.admit(head(b"authorization: Bearer " + ALICE)) == "alice"
    assert "file=bob line=1" in caplog.text
    assert "rh-plain-key" not in caplog.text


async def test_changes_of_a_mounted_secret_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "LOOK_S", 0.01)

    def publish(version: str, **files: bytes) -> None:
        """As a kubelet does: a new folder, and one link that is turned over to it."""
        (tmp_path / version).mkdir()
        for name, key in files.items():
            (tmp_path / version / name).write_text(hash_line(key))
            if not (mounted / name).is_symlink():
                (mounted / name).symlink_to(f"..data/{name}")
        (tmp_path / "next").symlink_to(tmp_path / version)
        os.replace(tmp_path / "next", mounted / "..data")
        for link in mounted.iterdir():
            if not link.exists():
                link.unlink()

    mounted = tmp_path / "mounted"
    mounted.mkdir()
    publish("1", alice=ALICE)
    keys = ApiKeys(mounted)
    follower = asyncio.create_task(keys.run())
    try:
        publish("2", bob=b"of-bob")
        for _ in range(500):
            if _admits(keys, b"of-bob"):
                break
            await asyncio.sleep(0.01)
        assert (_admits(keys, b"of-bob"), _admits(keys, ALICE)) == (True, False)
        (mounted / "..data").unlink()
        mounted.rename(tmp_path / "gone")
        await asyncio.sleep(0.05)
        assert _admits(keys, b"of-bob")
    finally:
        follower.cancel()


def _admits(keys: ApiKeys, key: bytes) -> bool:
    try:
        keys.admit(head(b"authorization: Bearer " + key))
    except ApiError:
        return False
    return True


def _status(transport: FakeTransport) -> int:
    return int(transport.sent[9:12])


def test_requests_of_one_connection_are_admitted_one_by_one(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bench = Bench([member(0)])
    bench.plane.keys = ApiKeys(folder)
    connection, transport = bench.connect()
    connection.data_received(post(CHAT))
    assert _status(transport) == 401
    assert b"www-authenticate: Bearer\r\n" in transport.sent
    body = json.loads(transport.sent.partition(b"\r\n\r\n")[2])["error"]
    assert (body["type"], body["code"], body["param"]) == ("authentication_error", "invalid_api_key", None)
    for _ in range(2):  # the second head is known by its bytes
        transport.sent = b""
        connection.data_received(post(CHAT, headers=b"Authorization: Bearer " + ALICE + b"\r\n"))
        engine = bench.busy()
        assert ALICE not in engine.take()
        engine.answer(b'{"model":"m","choices":[]}')
        assert _status(transport) == 200
    transport.sent = b""
    connection.data_received(b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n")
    assert _status(transport) == 401
    assert ALICE.decode() not in caplog.text
    bench.assert_empty()

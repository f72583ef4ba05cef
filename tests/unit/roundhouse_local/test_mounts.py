from pathlib import Path

import pytest
from roundhouse_local.kubelet.mounts import Mount, mounts_of, rewrite

MOUNTS = (Mount("/models/deep", "/host/deep"), Mount("/models", "/host/m"), Mount("/run/x", "/host/r"))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/models", "/host/m"),
        ("/models/a/b", "/host/m/a/b"),
        ("/models/deep/a", "/host/deep/a"),
        ("/modelsx", "/modelsx"),
        ("ipc:///run/x/kv.sock", "ipc:///host/r/kv.sock"),
        ("unix:///run/x/s", "unix:///host/r/s"),
        ("--path=/models/a", "--path=/host/m/a"),
        ("--kv-events=ipc:///run/x/e", "--kv-events=ipc:///host/r/e"),
        (
            '{"endpoint":"ipc:///run/x/e","replay":"ipc:///run/y"}',
            '{"endpoint":"ipc:///host/r/e","replay":"ipc:///run/y"}',
        ),
        ("http://h/models", "http://h/models"),
        ("a/models", "a/models"),
        ('echo > "/run/x/y"', 'echo > "/run/x/y"'),
        ("", ""),
    ],
)
def test_paths_at_the_beginning_and_in_urls_are_rewritten(text: str, want: str) -> None:
    assert rewrite(text, MOUNTS) == want


def test_longest_mount_path_wins_and_sub_paths_are_followed() -> None:
    container = {
        "volumeMounts": [
            {"name": "a", "mountPath": "/x/"},
            {"name": "b", "mountPath": "/x/y", "subPath": "sub"},
        ]
    }
    found = mounts_of(container, {"a": Path("/host/a"), "b": Path("/host/b")})
    assert found == (Mount("/x/y", "/host/b/sub"), Mount("/x", "/host/a"))

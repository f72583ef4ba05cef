"""Mounts without a mount namespace: paths inside the container become host folders wherever the pod names them.

A command, argument or environment value is rewritten when it is a mount path or lies below one, also after ``ipc://``,
``unix://`` or ``file://`` (anywhere, for instance in JSON) and after ``--option=``. Paths that a program has built in
are not found by this. Pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundhouse_operator.cluster import Obj

_OPTION = re.compile(r"(?:--?[A-Za-z0-9][\w.-]*=)?")
_URL = re.compile(r"((?:ipc|unix|file)://)(/[^\s\"']*)")


@dataclass(frozen=True, slots=True)
class Mount:
    """``path`` as the container sees it, ``folder`` (or file) where it really is."""

    path: str
    folder: str


def mounts_of(container: Obj, volumes: Mapping[str, Path]) -> tuple[Mount, ...]:
    """The container's mounts, the longest path first so that nested ones win."""
    found = []
    for mount in container.get("volumeMounts") or ():
        folder = volumes[mount["name"]]
        if sub := mount.get("subPath"):
            folder = folder / sub
        found.append(Mount(mount["mountPath"].rstrip("/"), str(folder)))
    return tuple(sorted(found, key=lambda mount: len(mount.path), reverse=True))


def rewrite(text: str, mounts: Iterable[Mount]) -> str:
    """``text`` with each mount path in it, where one is looked for, replaced by the folder."""
    mounts = tuple(mounts)
    option = _OPTION.match(text)
    begin = option.end() if option else 0
    if text.startswith("/", begin):
        return text[:begin] + _place(text[begin:], mounts)
    return _URL.sub(lambda url: url[1] + _place(url[2], mounts), text)


def _place(path: str, mounts: Iterable[Mount]) -> str:
    for mount in mounts:
        if path == mount.path or path.startswith(f"{mount.path}/"):
            return mount.folder + path[len(mount.path) :]
    return path


def rewrite_all(texts: Iterable[str], mounts: Sequence[Mount]) -> list[str]:
    return [rewrite(text, mounts) for text in texts]

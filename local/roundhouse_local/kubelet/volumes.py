"""A pod's volumes as folders. Secrets and ConfigMaps are written once, when the pod starts."""

import shutil
from pathlib import Path

from roundhouse_operator.cluster import Obj

from roundhouse_local.errors import MissingSource
from roundhouse_local.kubelet.sources import Data, Sources


def make_volumes(pod: Obj, folder: Path, sources: Sources) -> dict[str, Path]:
    """Folder of each volume by name; an emptyDir that is there already is kept. Raises `MissingSource`."""
    return {
        volume["name"]: _make(volume, folder / volume["name"], sources) for volume in pod["spec"].get("volumes") or ()
    }


def remove_volumes(folder: Path) -> None:
    """What the pod leaves; host paths are not below this folder."""
    shutil.rmtree(folder, ignore_errors=True)


def _make(volume: Obj, folder: Path, sources: Sources) -> Path:
    name = volume["name"]
    if "hostPath" in volume:
        return _host_path(name, volume["hostPath"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if "emptyDir" in volume:
        return folder
    if source := volume.get("secret"):
        data = sources.data("secret", source["secretName"], optional=source.get("optional", False))
        return _write(folder, source, data, secret=True)
    if source := volume.get("configMap"):
        data = sources.data("configmap", source["name"], optional=source.get("optional", False))
        return _write(folder, source, data, secret=False)
    kinds = ", ".join(key for key in volume if key != "name")
    raise MissingSource(f'volume "{name}": {kinds or "no source"} is not supported in the local run')


def _host_path(name: str, source: Obj) -> Path:
    path, kind = Path(source["path"]), source.get("type") or ""
    try:
        if kind == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        if kind == "FileOrCreate":
            path.touch()
    except OSError as error:
        raise MissingSource(f'volume "{name}": hostPath {path}: {error.strerror}') from None
    right = {"": True, "Directory": path.is_dir(), "DirectoryOrCreate": path.is_dir(), "File": path.is_file()}
    if not right.get(kind, path.exists()):
        raise MissingSource(f'volume "{name}": hostPath type check failed: {path} is not a {kind}')
    return path


def _write(folder: Path, source: Obj, data: Data | None, *, secret: bool) -> Path:
    mode = source.get("defaultMode", 0o600 if secret else 0o644)
    for key, relative in _items(source, data or {}).items():
        path = folder / relative
        if not path.resolve().is_relative_to(folder.resolve()):
            raise MissingSource(f"volume path {relative!r} leads out of the volume")
        if data is None or key not in data:
            raise MissingSource(f"references non-existent key: {key}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(data[key])
        path.chmod(mode)
    return folder


def _items(source: Obj, data: Data) -> dict[str, str]:
    items = source.get("items")
    if items is None:
        return {key: key for key in data}
    optional = source.get("optional", False)
    return {item["key"]: item["path"] for item in items if not optional or item["key"] in data}

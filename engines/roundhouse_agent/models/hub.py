"""A model on the Hugging Face hub, by its own client: resumed after an interruption, every file's hash checked.

The revision is resolved to a commit first, so one download never mixes two of them. ``HF_ENDPOINT`` points the client
at a mirror. The client goes on where a connection broke. Finished files stay in the partial folder when a later one
fails or the fetch is killed, and are not fetched again; the file that a killed fetch was at begins anew.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]  # its HTTP library's own
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils.tqdm import disable_progress_bars

from roundhouse_agent.errors import (
    AccessDenied,
    BadModelUri,
    CorruptModel,
    FetchError,
    ModelNotFound,
    Unreachable,
    UnsupportedModel,
)
from roundhouse_agent.models.cache import ModelFolder
from roundhouse_agent.models.progress import ProgressReporter, folder_size, watched_folder
from roundhouse_agent.models.uri import HubModel

WORKERS: Final = 4
CHUNK_BYTES: Final = 4 << 20
COMPANIONS: Final = (".json", ".jinja", ".model", ".txt")


@dataclass(frozen=True, slots=True)
class HubFile:
    """``sha256`` for large files, else ``blob`` (the SHA-1 that git gives a file)."""

    name: str
    size: int
    sha256: str = ""
    blob: str = ""


def fetch_hub(model: HubModel, token: str | None, folder: ModelFolder, progress: ProgressReporter) -> Path:
    """Download; returns the folder, or the one GGUF file, inside the partial folder."""
    disable_progress_bars()  # The agent shows progress, and says itself what went wrong.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    target = folder.partial / "hub"
    target.mkdir(parents=True, exist_ok=True)
    for orphan in target.rglob("*.incomplete"):
        orphan.unlink()
    with _explained(model, token):
        info = HfApi(token=token or False).model_info(model.repo, revision=model.revision, files_metadata=True)
        files = wanted_files(model, _files(info))
        total = sum(file.size for file in files)
        folder.need(total - min(total, folder_size(target)))
        with watched_folder(target, lambda done: progress.report("fetch", min(done, total), total)):
            snapshot_download(
                model.repo, revision=info.sha, local_dir=target, token=token or False,
                allow_patterns=[file.name for file in files], max_workers=WORKERS,
            )  # fmt: skip
    for file in files:
        _verify(model, target / file.name, file)
    return target / files[0].name if files[0].name.endswith(".gguf") else target


def wanted_files(model: HubModel, files: Sequence[HubFile]) -> list[HubFile]:
    """The weights that an engine loads and what belongs to them. Raises `UnsupportedModel` when there are none."""
    if model.path:
        if chosen := [file for file in files if file.name == model.path]:
            return chosen
        raise ModelNotFound(f"hf://{model.repo} has no file {model.path}: check the path in spec.model")
    top = [file for file in files if "/" not in file.name]
    weights = [file for file in top if file.name.endswith(".safetensors") and not file.name.startswith("consolidated")]
    if weights:
        return weights + [file for file in top if file.name.endswith(COMPANIONS)]
    ggufs = [file for file in files if file.name.endswith(".gguf")]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        names = ", ".join(file.name for file in ggufs[:4])
        raise UnsupportedModel(
            f"hf://{model.repo} holds {len(ggufs)} GGUF files ({names} …): name one, as in hf://{model.repo}/{ggufs[0].name}"
        )
    raise UnsupportedModel(f"hf://{model.repo} has neither safetensors nor GGUF weights: choose a repository that has")


def _files(info: ModelInfo) -> list[HubFile]:
    return [
        HubFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else "", "" if s.lfs else s.blob_id or "")
        for s in info.siblings or ()
    ]


def _verify(model: HubModel, path: Path, file: HubFile) -> None:
    """Raises `CorruptModel`, and removes the file so that the next try fetches it again."""
    size = path.stat().st_size if path.is_file() else -1
    if size == file.size and _digest_matches(path, file):
        return
    path.unlink(missing_ok=True)
    what = f"{size} bytes instead of {file.size}" if size != file.size else "a wrong hash"
    raise CorruptModel(
        f"hf://{model.repo}: {file.name} came with {what}: try again; if it stays so, check the hub mirror"
    )


def _digest_matches(path: Path, file: HubFile) -> bool:
    if file.sha256:
        return _digest(path, hashlib.sha256()) == file.sha256
    if file.blob:
        return _digest(path, hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)) == file.blob
    return True


def _digest(path: Path, state: "hashlib._Hash") -> str:
    with path.open("rb") as reader:
        while chunk := reader.read(CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()


@contextmanager
def _explained(model: HubModel, token: str | None) -> Iterator[None]:
    """The client's errors as ours, each with its remedy."""
    repo = f"hf://{model.repo}"
    try:
        yield
    except GatedRepoError as error:
        remedy = "accept its terms with the token's account" if token else "put a hub token into spec.modelSecret"
        raise AccessDenied(f"{repo} is gated: {remedy}") from error
    except RepositoryNotFoundError as error:
        remedy = (
            "or give the token access to it" if token else "or put a hub token into spec.modelSecret if it is private"
        )
        raise ModelNotFound(f"{repo} does not exist on the hub: check the name in spec.model, {remedy}") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{repo} has no revision {model.revision!r}: check spec.model") from error
    except HFValidationError as error:
        raise BadModelUri(f"{repo}: {error}: write hf://org/name") from error
    except LocalEntryNotFoundError as error:
        raise Unreachable(f"{repo}: the hub does not answer: check the network of this node") from error
    except EntryNotFoundError as error:
        raise ModelNotFound(f"{repo}: a file vanished from the hub while it was fetched: try again") from error
    except HfHubHTTPError as error:
        raise _http_failure(repo, error) from error
    except TransportError as error:
        raise Unreachable(
            f"{repo}: the hub does not answer ({type(error).__name__}): check the network of this node"
        ) from error
    except OSError as error:
        if "Consistency check failed" not in str(error):
            raise
        raise CorruptModel(
            f"{repo}: a file came with a wrong size: try again; if it stays so, check the hub mirror"
        ) from error


def _http_failure(repo: str, error: HfHubHTTPError) -> FetchError:
    status = error.response.status_code
    if status in (401, 403):
        return AccessDenied(f"{repo}: the hub refused the token ({status}): put a valid one into spec.modelSecret")
    if status == 429:
        return Unreachable(f"{repo}: the hub limits this address (429): wait, or put a hub token into spec.modelSecret")
    return Unreachable(f"{repo}: the hub answered {status}: try again later")

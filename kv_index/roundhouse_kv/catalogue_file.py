"""The last known catalogue on disk, so that a gateway that starts while Redis is away still knows its services."""

import logging
import os
from pathlib import Path

import msgspec

from roundhouse_kv.catalogue_store import Catalogue, parse_catalogue
from roundhouse_kv.errors import WireError
from roundhouse_kv.records import RECORD_VERSION, encode_record

log = logging.getLogger(__name__)


def save_catalogue(path: Path, catalogue: Catalogue) -> None:
    """Replace the file in one step. What goes wrong is logged: a full disk must not stop a gateway."""
    fields = {key: encode_record(entry).decode() for key, entry in catalogue.services.items()}
    fields |= {"v": str(RECORD_VERSION), "term": str(catalogue.term), "version": str(catalogue.version)}
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(msgspec.json.encode(fields))
        os.replace(fresh, path)
    except OSError as error:
        log.warning("catalogue_not_saved", extra={"path": str(path), "error": str(error)})


def load_catalogue(path: Path) -> Catalogue | None:
    """None when there is no file or it cannot be read."""
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        return parse_catalogue({name.encode(): value.encode() for name, value in fields.items()})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, WireError, msgspec.MsgspecError) as error:
        log.warning("saved_catalogue_unreadable", extra={"path": str(path), "error": str(error)})
        return None

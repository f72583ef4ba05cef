"""Everything this package raises, by who is at fault: settings, model, engine, or a request (with its HTTP status)."""


class EngineError(Exception):
    """Root of everything this package raises."""


class SettingsError(EngineError):
    """A command-line value that cannot be used."""


class ModelError(EngineError):
    """The model folder cannot be served; the message names what is wrong and what would work."""


class UnsupportedModel(ModelError):
    """A family, type or format that this engine does not implement."""


class BrokenModel(ModelError):
    """Missing or inconsistent files."""


class EngineDied(EngineError):
    """The engine process ended, for the reason that it gave."""


class EngineGone(EngineDied):
    """The engine process ended without giving a reason."""


class RequestError(EngineError):
    """An answer other than 200. ``kind`` is vLLM's name for the error type."""

    status = 500
    kind = "InternalServerError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BadRequest(RequestError):
    """A value that the request must not have."""

    status = 400
    kind = "BadRequestError"


class MalformedRequest(BadRequest):
    """A body that is no JSON or has fields of the wrong type or out of range."""

    kind = "Bad Request"


class BadAdapter(BadRequest):
    """An adapter that cannot be loaded or not now, in vLLM's words."""

    kind = "InvalidUserInput"


class ModelNotFound(RequestError):
    """A model name that this engine does not answer to."""

    status = 404
    kind = "NotFoundError"


class AdapterNotFound(ModelNotFound):
    """An adapter, or its files, that are not there."""


class TooLarge(RequestError):
    """A body above the limit."""

    status = 413
    kind = "RequestEntityTooLarge"


class Busy(RequestError):
    """The engine takes no more work now; ``retry_after_s`` is a hint for the client."""

    status = 503
    kind = "Service Unavailable"
    retry_after_s = 1


def require(holds: bool, message: str, param: str) -> None:
    """Raises `BadRequest`."""
    if not holds:
        raise BadRequest(message, param)

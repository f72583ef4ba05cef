"""SimError
├── BadSettings   the command line asks for something impossible; names the option and the fix
├── BadFault      a fault that cannot be armed as described
└── ApiError      a request that is answered with an error object of OpenAI's shape
"""


class SimError(Exception):
    """Root of everything this package raises."""


class BadSettings(SimError):
    """The command line asks for something impossible."""


class BadFault(SimError):
    """A fault that cannot be armed as described."""


class ApiError(SimError):
    """Becomes ``{"error": {"message", "type", "param", "code"}}`` with HTTP ``status``."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


def bad_request(message: str, param: str | None = None, kind: str = "BadRequestError") -> ApiError:
    return ApiError(400, kind, message, param)

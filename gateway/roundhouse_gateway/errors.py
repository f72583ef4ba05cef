"""GatewayError
├── ApiError       what a client is told: an HTTP status and an OpenAI-shaped body with a stable ``code``
├── BadSettings    the command line or environment cannot be used; the message says which option and why
└── NotServing     the data plane did not answer the admin API in time
"""


class GatewayError(Exception):
    """Root of everything this package raises."""


class BadSettings(GatewayError):
    """Settings that cannot be used."""


class NotServing(GatewayError):
    """The data plane's loop did not answer in time."""


class ApiError(GatewayError):
    """An answer to the client; ``code`` is one of contracts §9 and never changes its meaning.

    ``close``: the connection cannot be used after it, because the rest of the request was not read.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        allow: str | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow
        self.close = close

"""AgentError
├── BadSettings      an environment variable is missing or cannot be read
└── FetchError       the model could not be made ready; the message is one line that ends with the remedy
    ├── BadModelUri      the model URI cannot be read
    ├── ModelNotFound    no such repository, package, folder or file
    ├── AccessDenied     the hub wants a token, or a token with more rights
    ├── CorruptModel     a file's size or hash is wrong, or it cannot be parsed
    ├── Unreachable      the hub or the package index did not answer
    ├── NoSpace          the disk is full
    └── UnsupportedModel no weights that an engine can load, or an architecture or tokenizer that cannot be converted
"""


class AgentError(Exception):
    """Root of everything this package raises."""


class BadSettings(AgentError):
    """An environment variable is missing or cannot be read."""


class FetchError(AgentError):
    """The model could not be made ready."""


class BadModelUri(FetchError):
    """The model URI cannot be read."""


class ModelNotFound(FetchError):
    """No such repository, package, folder or file."""


class AccessDenied(FetchError):
    """The hub wants a token, or a token with more rights."""


class CorruptModel(FetchError):
    """A file's size or hash is wrong, or it cannot be parsed."""


class Unreachable(FetchError):
    """The hub or the package index did not answer."""


class NoSpace(FetchError):
    """The disk is full."""


class UnsupportedModel(FetchError):
    """Nothing in it that an engine can load, or an architecture or tokenizer that cannot be converted."""

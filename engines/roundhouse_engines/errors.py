"""EngineError
├── UnknownEngine   no such engine kind
├── BadEngineSpec   the user's engine settings cannot be launched; names the field and the fix
└── ProbeError      the engine did not answer a probe as it should
"""


class EngineError(Exception):
    """Root of everything this package raises."""


class UnknownEngine(EngineError):
    """No such engine kind."""


class BadEngineSpec(EngineError):
    """The engine settings of an InferenceService cannot be launched."""


class ProbeError(EngineError):
    """The engine refused, timed out or answered with something unreadable."""

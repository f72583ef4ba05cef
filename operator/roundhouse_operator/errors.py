"""OperatorError
├── InvalidObject   an InferenceService or EngineReplica that breaks its schema or rules; names every field
├── AgentError      an agent did not answer, or answered with something unreadable
├── SourceEnded     what reports changes in the cluster has stopped doing so
└── BadSettings     the operator's own settings contradict each other
"""

from collections.abc import Sequence


class OperatorError(Exception):
    """Root of everything this package raises, apart from `ClusterError` of the cluster's edge."""


class InvalidObject(OperatorError):
    """``complaints`` are one line each and begin with the field."""

    def __init__(self, complaints: Sequence[str]) -> None:
        super().__init__("; ".join(complaints))
        self.complaints = tuple(complaints)


class AgentError(OperatorError):
    """No usable answer from an agent within the deadline."""


class SourceEnded(OperatorError):
    """No more changes are reported. The process must begin anew."""


class BadSettings(OperatorError):
    """The operator cannot run with these settings; names the setting and the fix."""

"""Scripted faults: armed over HTTP (``/sim/faults``) or by ``--fault``, each taken by the requests that come next.

A fault concerns requests whose path starts with ``path`` (default: the inference API; ``/sim/`` is never touched). The
oldest armed fault that fits is taken, ``count`` times. ``slow`` is different: it lasts until disarmed and slows every
step of the engine.
"""

from enum import StrEnum
from typing import Final

import msgspec

from roundhouse_sim.errors import BadFault

UNTIL_DELETED: Final = -1


class Kind(StrEnum):
    REFUSE = "refuse"  # close the connection, as if at accept
    HANG = "hang"  # not a single byte
    SILENCE = "silence"  # headers, then nothing
    RESET = "reset"  # RST after some events
    ABORT = "abort"  # finish_reason abort after some events
    ERROR = "error"  # an error event after some events
    SLOW = "slow"  # every step takes factor times as long
    STATUS = "status"  # answered with this status
    CRASH = "crash"  # exit 1, at once or after some events


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``count`` requests meet the fault, −1 = all until it is deleted. ``after_events`` counts SSE data events, or
    generated tokens of an answer that is not streamed."""

    fault: Kind
    count: int = 1
    after_events: int | None = None
    factor: float = 2.0
    status: int = 500
    path: str = "/v1/"

    def __post_init__(self) -> None:
        if self.count < 1 and self.count != UNTIL_DELETED:
            raise ValueError("count is at least 1, or -1 for every request until deleted")
        if self.after_events is not None and self.after_events < 0:
            raise ValueError("after_events is 0 or more")
        if not self.factor > 0:
            raise ValueError("factor is greater than 0")
        if not 400 <= self.status <= 599:
            raise ValueError("status is an HTTP error, 400 to 599")
        if not self.path.startswith("/"):
            raise ValueError("path starts with /")

    @property
    def immediate_crash(self) -> bool:
        return self.fault is Kind.CRASH and self.after_events is None


class FaultBoard:
    """What is armed, oldest first."""

    def __init__(self) -> None:
        self.armed: list[Fault] = []

    def arm(self, fault: Fault) -> None:
        self.armed.append(fault)

    def disarm(self) -> None:
        self.armed.clear()

    @property
    def slowdown(self) -> float:
        product = 1.0
        for fault in self.armed:
            if fault.fault is Kind.SLOW:
                product *= fault.factor
        return product

    def take(self, path: str) -> Fault | None:
        """The fault that a request for ``path`` meets, None when it is served as it should be."""
        for index, fault in enumerate(self.armed):
            if fault.fault is not Kind.SLOW and path.startswith(fault.path):
                if fault.count > 0:
                    fault.count -= 1
                    if not fault.count:
                        del self.armed[index]
                return fault
        return None


def parse_fault(body: bytes) -> Fault:
    """From JSON. Raises `BadFault`."""
    try:
        return msgspec.json.decode(body, type=Fault)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFault(f"fault: {error}") from error


def parse_fault_option(text: str) -> Fault:
    """From the command line: ``reset,after_events=3,count=-1``. Raises `BadFault`."""
    kind, _, rest = text.partition(",")
    fields: dict[str, object] = {"fault": kind}
    for item in filter(None, rest.split(",")):
        name, _, value = item.partition("=")
        fields[name] = value
    try:
        return msgspec.convert(fields, Fault, strict=False)
    except msgspec.ValidationError as error:
        raise BadFault(f"--fault {text}: {error}") from error

"""Processes that cannot outlive the supervisor.

`ProcessHost` starts the warden (`warden.py`, a small process of its own) and asks it to start everything else. The
warden is the parent of all and adopts their orphans; when the supervisor goes, however it goes, the socket between the
two closes and the warden kills all of its descendants, then itself.
"""

from roundhouse_local.processes.host import Exit, Process, ProcessHost

__all__ = ["Exit", "Process", "ProcessHost"]

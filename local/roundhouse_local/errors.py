"""LocalError
├── SpawnError     a process could not be started: no such program, no such folder, log file not writable
├── ImageError     no program is known for a container image
├── MissingSource  a volume or the source of an environment variable is not there (yet)
├── UserError      what the user gave cannot be used; the message names the place and the fix
└── StartError     the local run cannot start or has lost a part that it needs
"""


class LocalError(Exception):
    """Root of everything this package raises."""


class SpawnError(LocalError):
    """The program could not be started; the message names the step and the operating system's reason."""


class ImageError(LocalError):
    """The image stands for no program on this machine; the message says what to install."""


class MissingSource(LocalError):
    """A Secret, ConfigMap, key or folder that the pod refers to is missing."""


class UserError(LocalError):
    """A flag, file or object that cannot be used. Shown as one line, exit code 2."""


class StartError(LocalError):
    """A port is taken, another run is up, a folder is not writable, a part died. Shown as one line, exit code 1."""

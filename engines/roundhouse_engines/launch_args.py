"""What the launch lines of all engine kinds share: the user's arguments must not fight with ours."""

from collections.abc import Iterable, Sequence

from roundhouse_engines.errors import BadEngineSpec


def gives(args: Iterable[str], flags: Sequence[str]) -> str | None:
    """The first of ``flags`` in ``args``, as ``--flag value`` or ``--flag=value``; underscores count as dashes."""
    for arg in args:
        name = arg.split("=", 1)[0].replace("_", "-")
        if name in flags:
            return name
    return None


def refuse_owned(args: Iterable[str], flags: Sequence[str]) -> None:
    """Raises `BadEngineSpec` when the user sets a flag that the operator sets."""
    flag = gives(args, flags)
    if flag is not None:
        raise BadEngineSpec(f"spec.engine.args must not hold {flag}: Roundhouse sets it; remove it")

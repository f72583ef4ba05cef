"""How many blocks fit: from a number of bytes, or from a share of the memory that this process may use."""

from pathlib import Path

import torch

from roundhouse_torch.errors import SettingsError

DEFAULT_FRACTION = {"cuda": 0.9, "cpu": 0.1}
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def host_memory(meminfo: Path = Path("/proc/meminfo"), limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Bytes of the machine, or of the container when that is less."""
    total = next(
        int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:")
    )
    for path in limits:
        text = path.read_text().strip() if path.exists() else "max"
        if text != "max":
            total = min(total, int(text))
    return total


def cache_bytes(device: torch.device, asked: int | None, fraction: float | None) -> int:
    """Bytes to spend on KV. On CUDA the share is of what is free once the weights are loaded."""
    if asked is not None:
        return asked
    share = DEFAULT_FRACTION[device.type] if fraction is None else fraction
    memory = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else host_memory()
    return int(share * memory)


def block_count(budget: int, bytes_per_block: int) -> int:
    """Raises `SettingsError` when not even two blocks fit."""
    if budget < 2 * bytes_per_block:
        raise SettingsError(
            f"the KV cache has {budget} bytes but two blocks need {2 * bytes_per_block}; raise --kv-cache-bytes"
        )
    return budget // bytes_per_block

"""Probe of the simulator: as the bundled engine's, and the model's description comes from the engine itself."""

from roundhouse_engines.errors import ProbeError
from roundhouse_engines.vllm.probe import METRICS_TIMEOUT_S, VllmProbe


class SimProbe(VllmProbe):
    kind = "sim"
    snapshots = True

    async def model_file(self, name: str) -> bytes | None:
        status, data = await self._request("GET", f"/sim/model/{name}", METRICS_TIMEOUT_S)
        if status not in (200, 404):
            raise ProbeError(f"/sim/model/{name} answered {status}")
        return data if status == 200 else None


PROBE = SimProbe

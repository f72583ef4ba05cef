"""Probe of the bundled engine: vLLM's protocols, and a snapshot of the whole cache for an agent that comes late."""

from roundhouse_engines.vllm.probe import VllmProbe


class TorchProbe(VllmProbe):
    kind = "torch"
    snapshots = True


PROBE = TorchProbe

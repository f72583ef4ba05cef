"""Which of the node's GPUs belong to which pod. Real GPUs if the machine has them: programs see only their own."""

from roundhouse_operator.cluster import Obj

from roundhouse_local.api.quantity import pod_requests


class GpuShelf:
    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._taken: dict[str, list[int]] = {}

    def take(self, pod: Obj) -> None:
        """The scheduler has made sure that there are enough."""
        wanted = int(pod_requests(pod).get("nvidia.com/gpu", 0))
        self._taken[pod["metadata"]["uid"]], self._free = self._free[:wanted], self._free[wanted:]

    def give_back(self, uid: str) -> None:
        self._free = sorted([*self._free, *self._taken.pop(uid, [])])

    def environment(self, pod: Obj) -> dict[str, str]:
        """A pod without GPUs sees none, as it would in a container."""
        own = ",".join(map(str, self._taken.get(pod["metadata"]["uid"], [])))
        return {"CUDA_VISIBLE_DEVICES": own, "NVIDIA_VISIBLE_DEVICES": own or "void"}

"""A kubelet that runs pods as processes of this machine, for `roundhouse up` and tests.

Data flows ``kubelet`` (watches pods of its node) → ``pod`` (one worker a pod: order of containers, termination) →
``container`` (one process: probes, restarts, stop) → ``processes`` (the warden). Pure parts: ``environment``,
``mounts``, ``pod_status``, ``backoff``, ``ignored``, and the thresholds in ``probes``.

Instead of namespaces: a container image stands for a program (``images``), volumes are folders whose paths are put in
place of mount paths in commands, arguments and environment (``mounts``), each pod has its own loopback address
(``addresses``), and a container's processes end together (the warden).

Not there, and said once when a pod asks for it (``ignored``): security contexts, enforced limits, read-only mounts,
service accounts, host namespaces, DNS, affinities, tolerations, postStart hooks. Secrets and ConfigMaps in volumes do
not follow later changes.
"""

from roundhouse_local.kubelet.addresses import AddressPool
from roundhouse_local.kubelet.backoff import BackoffRule
from roundhouse_local.kubelet.environment import base_environment
from roundhouse_local.kubelet.images import ROUNDHOUSE_IMAGES, Image, python_image
from roundhouse_local.kubelet.kubelet import Kubelet, KubeletSettings

__all__ = [
    "ROUNDHOUSE_IMAGES",
    "AddressPool",
    "BackoffRule",
    "Image",
    "Kubelet",
    "KubeletSettings",
    "base_environment",
    "python_image",
]

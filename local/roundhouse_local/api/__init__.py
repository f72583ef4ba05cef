"""The Kubernetes API in memory.

`MemoryCluster` stands behind the operator's `Cluster` protocol. Data flows one way: ``cluster`` (verbs and their rules)
→ ``store`` (objects, resourceVersions) → ``history`` (what watches replay); ``collector`` and ``scheduler`` watch the
store like the controllers of the same name in a real cluster; ``merge`` (server-side apply) and ``schema`` are pure.
"""

from roundhouse_local.api.cluster import NODE, MemoryCluster
from roundhouse_local.api.schema import SchemaValidator

__all__ = ["NODE", "MemoryCluster", "SchemaValidator"]

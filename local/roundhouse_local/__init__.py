"""Roundhouse without a cluster: the Kubernetes API in memory, a kubelet of processes, and `roundhouse up`."""

"""The process beside each engine: fetches its model, then tells the fleet what the engine does and what it holds.

``serve`` runs as a sidecar for the pod's whole life; ``fetch`` runs once before the engine starts. Neither has a
Kubernetes token; ``fetch`` alone holds the model hub's token.
"""

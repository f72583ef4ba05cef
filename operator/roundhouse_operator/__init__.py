"""The operator: InferenceServices in, running EngineReplicas out. The only part that talks to Kubernetes."""

"""Engine kind ``vllm``."""

"""KV events for whoever mirrors this cache."""

"""Books ↔ the service's books channel: changes leave at once, a table each second, a gap asks."""

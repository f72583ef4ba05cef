"""OpenAI's HTTP API over the engine process."""

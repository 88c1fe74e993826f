"""The HTTP side of the engine: OpenAI endpoints, and what a worker says of itself."""

"""The model runner: Llama-architecture checkpoints on numpy, over a paged KV pool."""

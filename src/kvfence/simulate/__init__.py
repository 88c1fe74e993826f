"""A world with a scheduler, clock, network and memory of its own, and the search for a breach of the fence in it."""

"""Guards that run inside an engine of someone else's, through the engine's own plugin interface."""

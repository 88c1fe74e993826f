"""Starts real engines, sends them what leaks, and compares what they do with what is declared."""

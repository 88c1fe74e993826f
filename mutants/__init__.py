"""Faults put into the fence by hand, one at a time, and what must notice each of them."""

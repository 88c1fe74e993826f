"""The door: refuses what no pair of workers can hold, and passes on the rest."""

"""The recall model: a checkpoint made by formula that recites what is in its KV cache."""

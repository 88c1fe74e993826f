"""The deployment as it was seen: facts with evidence, and the readers that find them."""

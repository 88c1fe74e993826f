"""`kvfence gateway` in front of real pairs of SGLang."""

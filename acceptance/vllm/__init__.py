"""The real vLLM as prefill and decode servers on two CPU cores, and what it does with a handoff of someone else's."""

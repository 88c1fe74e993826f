"""vLLM: its logs, launch commands and endpoints, as 0.32.0 was seen to write and answer them."""

ENGINE = "vllm"

#!/bin/sh
export MC_FORCE_TCP=1
export MOONCAKE_PROTOCOL=tcp
export SGLANG_DISAGGREGATION_WAITING_TIMEOUT=10
export SGLANG_HOST_IP=127.0.0.1
export SGLANG_PLUGINS=kvfence
export SGLANG_USE_CPU_ENGINE=1
exec python -m sglang.launch_server --model-path /models/recall --device cpu --host 127.0.0.1 --context-length 4096 --disaggregation-transfer-backend mooncake --chunked-prefill-size 256 --enable-metrics --port 20951 --disaggregation-mode prefill --max-total-tokens 1024 --disaggregation-bootstrap-port 22004

#!/bin/sh
export SGLANG_DISAGGREGATION_WAITING_TIMEOUT=300
exec python3 -m sglang.launch_server \
  --model-path /models/GLM-5.3-FP8 --served-model-name glm-5.3 \
  --host 0.0.0.0 --port 30000 --tp 8 --ep 8 --page-size 64 \
  --context-length 1048576 --kv-cache-dtype fp8_e4m3 --mem-fraction-static 0.88 \
  --disaggregation-mode decode --disaggregation-transfer-backend mooncake

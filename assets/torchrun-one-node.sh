#!/bin/bash
# One node, all its GPUs:   bash torchrun-one-node.sh train_fsdp2.py --model FOLDER --data TEXT --steps 1000
set -euo pipefail

GPUS=${GPUS:-gpu} # `gpu`: as many as there are; without one: GPUS=2 starts two CPU processes

# A few threads a rank: AdamW under CPU offload and the tokenizer use them, a thread per core each would thrash.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
# Segments that grow instead of pieces: less memory lost to fragments when shapes change between blocks.
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
# A restart gets a fresh store; otherwise ranks may find the addresses of those that died.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# --standalone picks a free port, so that two jobs on one node do not meet.
# --max-restarts: after a crash all ranks start again and go on from the last checkpoint.
exec torchrun --standalone --nproc-per-node "$GPUS" --max-restarts "${RESTARTS:-3}" "$@"

#!/bin/bash
# Several nodes, the same command on each, in any order:
#   NODES=2 RENDEZVOUS=node0:29500 JOB=run7 bash torchrun-many-nodes.sh train_fsdp2.py --checkpoint-dir /shared/run7 ...
set -euo pipefail

: "${NODES:?how many nodes, such as 2}"
: "${RENDEZVOUS:?address and free port of one of the nodes, such as node0:29500}"
: "${JOB:?a name that only this run has, the same on every node}"

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # a restart gets a fresh store, without the addresses of dead ranks

# NCCL finds its way alone on most clusters. Set these only where it does not:
# export NCCL_SOCKET_IFNAME=eth0      # the interface for the first contact, where there are several (or docker0 wins)
# export NCCL_IB_HCA=mlx5             # the InfiniBand adapters to use; a wrong one falls back to slow TCP
# export NCCL_IB_DISABLE=1            # only to find out whether InfiniBand is the trouble
# export NCCL_DEBUG=INFO              # at start, look for "NET/IB" (fast) or "NET/Socket" (slow)
# export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1   # who hung in which collective, on a timeout
# A rank that hangs ends the job after the script's --timeout; torch's own default (abort, then exit) is right.

# c10d: the node behind RENDEZVOUS keeps the store, the others join; no etcd needed.
exec torchrun --nnodes "$NODES" --nproc-per-node "${GPUS:-gpu}" --max-restarts "${RESTARTS:-3}" \
    --rdzv-backend c10d --rdzv-endpoint "$RENDEZVOUS" --rdzv-id "$JOB" "$@"

#!/bin/bash
torchrun --nproc_per_node 8 -m torchtitan.train \
  --module llama3 --config llama3_8b \
  --training.seq_len 131072 --training.local_batch_size 1 --training.global_batch_size 1 \
  --parallelism.context_parallel_degree 8 --parallelism.data_parallel_shard_degree 1 \
  --parallelism.fsdp_reshard_after_forward always \
  --training.enable_cpu_offload --compile.enable

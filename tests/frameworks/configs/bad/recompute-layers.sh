#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    --seq-length 8192 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 --bf16 \
    --tensor-model-parallel-size 2 --use-distributed-optimizer --recompute-granularity full \
    --recompute-method uniform

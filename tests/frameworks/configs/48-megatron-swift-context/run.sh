#!/bin/bash
NNODES=1 NPROC_PER_NODE=8 megatron sft \
    --model meta-llama/Llama-3.1-8B --dataset AI-ModelScope/LongAlpaca-12k --torch_dtype bfloat16 \
    --tensor_model_parallel_size 2 --sequence_parallel --context_parallel_size 2 --cp_comm_type p2p \
    --use_distributed_optimizer --optimizer adam --micro_batch_size 1 --global_batch_size 2 \
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --max_length 32768

#!/bin/bash
# longer sequences than in the file
tune run --nnodes 1 --nproc_per_node 8 full_finetune_distributed --config qwen2_5_7B.yaml \
    tokenizer.max_seq_len=16384 dataset.packed=True \
    batch_size=1 gradient_accumulation_steps=4 \
    enable_activation_checkpointing=True compile=True \
    fsdp_cpu_offload=True tensor_parallel_dim=1 \
    ~clip_grad_norm \
    metric_logger._component_=torchtune.training.metric_logging.StdoutLogger

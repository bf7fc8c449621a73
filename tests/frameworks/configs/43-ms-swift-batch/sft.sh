#!/bin/bash
NPROC_PER_NODE=8 swift sft --model meta-llama/Llama-3.1-8B --train_type full --dataset data.jsonl \
    --per_device_train_batch_size 4 --max_length 8192 --deepspeed zero3 --output_dir out

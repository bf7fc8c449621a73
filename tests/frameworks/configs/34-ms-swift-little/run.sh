#!/bin/bash
export NPROC_PER_NODE=8
swift sft --model Qwen/Qwen3-8B --tuner_type full \
    --dataset data.jsonl --max_length 4096 \
    --deepspeed zero2 --output_dir out

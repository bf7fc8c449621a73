#!/bin/bash
NPROC_PER_NODE=8 swift sft --model meta-llama/Llama-3.1-8B --train_type full --dataset data.jsonl \
    --deepspeed zero9 --max_length 8192

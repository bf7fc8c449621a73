#!/bin/bash
set -euo pipefail

export WANDB_PROJECT=sft
export TOKENIZERS_PARALLELISM=false
MODEL=${MODEL:-meta-llama/Llama-3.1-8B}
LEN=${1:-4096}

accelerate launch \
    --config_file fsdp.yaml \
    --num_processes 8 \
    trl/scripts/sft.py \
    --model_name_or_path "$MODEL" \
    --dataset_name stanfordnlp/imdb \
    --max_length 4096 \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 2 \
    --bf16 \
    --optim adafactor \
    --torch_dtype bfloat16 \
    --learning_rate 2e-5 \
    --report_to none \
    --output_dir "./out/$(basename "$MODEL")"

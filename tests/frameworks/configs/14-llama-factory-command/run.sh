#!/bin/bash

FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train \
    --stage pt \
    --do_train True \
    --model_name_or_path Qwen/Qwen3-0.6B \
    --finetuning_type full \
    --dataset c4_demo \
    --cutoff_len 8192 \
    --disable_gradient_checkpointing \
    --flash_attn sdpa \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 \
    --pure_bf16 true \
    --optim adamw_torch \
    --lr_scheduler_type cosine \
    --learning_rate 1e-4 \
    --output_dir saves/pt \
    --report_to wandb \
    --plot_loss

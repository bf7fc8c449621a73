deepspeed \
  src/train.py \
  --model_name_or_path Qwen/Qwen2-72B-Instruct \
  --deepspeed ds_z3_config.json \
  --stage dpo \
  --finetuning_type full \
  --per_device_train_batch_size 1 \
  --gradient_accumulation_steps 4 \
  --preprocessing_num_workers 8 \
  --bf16 True \
  --cutoff_len 6144

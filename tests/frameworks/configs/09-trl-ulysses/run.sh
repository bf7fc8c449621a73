accelerate launch --config_file alst.yaml sft.py \
  --model_name_or_path Qwen/Qwen3-8B \
  --attn_implementation flash_attention_2 \
  --dataset_name trl-lib/Capybara --packing \
  --max_length $((64 * 1024)) \
  --pad_to_multiple_of 4 \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 1 \
  --gradient_checkpointing true \
  --activation_offloading \
  --output_dir out

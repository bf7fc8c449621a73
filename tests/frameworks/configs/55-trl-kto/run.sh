accelerate launch --num_processes 8 --use_deepspeed --zero_stage 3 trl/scripts/kto.py \
    --model_name_or_path Qwen/Qwen3-1.7B --dataset_name trl-lib/kto-mix-14k --max_length 2048 \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --beta 0.1 \
    --desirable_weight 1.0 --undesirable_weight 1.33 --learning_rate 5e-7 --bf16 --output_dir kto

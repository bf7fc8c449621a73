accelerate launch --config_file accelerate_config.yaml --num_processes 8 scripts/fsdp/train.py \
    --model_name_or_path Qwen/Qwen2.5-7B-Instruct --train_file train.jsonl --output_dir out \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --max_length 4096 --learning_rate 1e-5 --min_lr 1e-6 \
    --warmup_ratio 0.1 --num_train_epochs 999 --max_steps 50 --logging_steps 1 --benchmark --benchmark_log bench.jsonl \
    --warmup_steps_bench 20 --compile --no_gradient_checkpointing --pad_to_max

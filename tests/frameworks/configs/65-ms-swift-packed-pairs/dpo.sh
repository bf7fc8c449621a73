NPROC_PER_NODE=4 swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --train_type full \
    --dataset data.jsonl --torch_dtype bfloat16 --per_device_train_batch_size 1 --gradient_accumulation_steps 1 \
    --max_length 8192 --deepspeed zero3 --attn_impl flash_attn --packing true --output_dir out

NPROC_PER_NODE=8 swift rlhf \
    --rlhf_type ppo --model Qwen/Qwen3-1.7B --reward_model Qwen/Qwen3-1.7B --tuner_type full \
    --torch_dtype bfloat16 --dataset AI-ModelScope/alpaca-gpt4-data-en --max_length 1024 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --num_ppo_epochs 2 \
    --local_rollout_forward_batch_size 16 --response_length 512 --kl_coef 0.05 --deepspeed zero2 \
    --learning_rate 1e-6

NPROC_PER_NODE=8 swift rlhf \
    --rlhf_type grpo --model Qwen/Qwen3-4B --tuner_type full --reward_funcs accuracy format \
    --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4 --vllm_max_model_len 8192 \
    --sleep_level 1 --offload_optimizer true --torch_dtype bfloat16 --dataset AI-MO/NuminaMath-TIR \
    --max_length 2048 --max_completion_length 4096 --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 --num_generations 8 --temperature 1.0 --deepspeed zero3 \
    --learning_rate 1e-6 --attn_impl flash_attn

read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo \
 --pretrain /models/Llama-3-8b-sft-mixture \
 --reward_pretrain /models/Llama-3-8b-rm-mixture \
 --save_path ./checkpoint/Llama-3-8b-sft-mixture \
 --save_steps -1 \
 --logging_steps 1 \
 --eval_steps -1 \
 --micro_train_batch_size 1 \
 --train_batch_size 4 \
 --micro_rollout_batch_size 1 \
 --rollout_batch_size 4 \
 --max_epochs 2 \
 --prompt_max_len 1024 \
 --generate_max_len 1024 \
 --zero_stage 2 \
 --bf16 \
 --actor_learning_rate 5e-7 \
 --critic_learning_rate 9e-6 \
 --init_kl_coef 0.01 \
 --prompt_data OpenRLHF/prompt-collection-v0.1 \
 --input_key context_messages \
 --apply_chat_template \
 --max_samples 100000 \
 --normalize_reward \
 --adam_offload \
 --flash_attn \
 --load_checkpoint \
 --gradient_checkpointing
EOF
if [[ ${1} != "slurm" ]]; then
  deepspeed --module $training_commands
fi

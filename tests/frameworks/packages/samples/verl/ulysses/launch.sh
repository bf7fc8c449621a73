# A comment.
python3 -m verl.trainer.main_ppo \
  trainer.n_gpus_per_node=8 trainer.nnodes=1 data.train_batch_size=64 \
  actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B \
  actor_rollout_ref.model.enable_gradient_checkpointing=true \
  actor_rollout_ref.model.enable_activation_offload=false \
  actor_rollout_ref.actor.use_dynamic_bsz=true \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=131072 \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true \
  actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=8 \
  actor_rollout_ref.actor.fsdp_config.param_offload=true \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5

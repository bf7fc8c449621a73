python3 -m verl.trainer.main_ppo \
  data.train_files=$DATA_DIR/train.parquet \
  data.train_batch_size=256 \
  data.max_prompt_length=256 \
  data.max_response_length=1024 \
  actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B \
  actor_rollout_ref.actor.ppo_mini_batch_size=128 \
  actor_rollout_ref.actor.ppo_micro_batch_size=8 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size=16 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
  critic.model.path=meta-llama/Llama-2-7b-hf \
  critic.ppo_micro_batch_size=32 \
  trainer.n_gpus_per_node=8

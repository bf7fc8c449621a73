python3 -m verl.trainer.main_ppo \
  data.max_response_length=1024 \
  actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B \
  actor_rollout_ref.actor.ppo_mini_batch_size=128 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.rollout.name=vllm

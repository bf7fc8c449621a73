#!/bin/bash
# PPO: values have a model of their own, and what does not run waits on the host
python3 -m verl.trainer.main_ppo \
    data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=512 \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    critic.optim.lr=1e-5 critic.model.path=Qwen/Qwen3-8B critic.model.use_remove_padding=True \
    critic.model.enable_gradient_checkpointing=True critic.ppo_max_token_len_per_gpu=32768 \
    critic.model.fsdp_config.param_offload=True critic.model.fsdp_config.optimizer_offload=True \
    algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.001 \
    trainer.critic_warmup=0 trainer.n_gpus_per_node=8 trainer.nnodes=1

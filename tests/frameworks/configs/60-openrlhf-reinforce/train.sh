# The reference shares the actor's GPUs, and rollouts have their own
python3 -m openrlhf.cli.train_ppo_ray \
   --ref_num_nodes 1 --ref_num_gpus_per_node 4 --actor_num_nodes 1 --actor_num_gpus_per_node 4 \
   --colocate_actor_ref --vllm_num_engines 4 --vllm_tensor_parallel_size 1 \
   --advantage_estimator reinforce_baseline --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k2 \
   --pretrain Qwen/Qwen3-4B --remote_rm_url http://localhost:5000/get_reward \
   --micro_train_batch_size 1 --train_batch_size 128 --micro_rollout_batch_size 2 --rollout_batch_size 128 \
   --n_samples_per_prompt 8 --prompt_max_len 1024 --generate_max_len 7168 --packing_samples \
   --zero_stage 3 --bf16 --gradient_checkpointing --adam_offload --prompt_data ./prompts

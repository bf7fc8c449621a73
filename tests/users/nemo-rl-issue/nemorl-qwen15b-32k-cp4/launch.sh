uv run examples/run_sft.py --config sft.yaml policy.model_name=Qwen/Qwen2.5-1.5B policy.dtensor_cfg.enabled=false policy.megatron_cfg.enabled=true \
  ++policy.megatron_cfg.tensor_model_parallel_size=1 \
  ++policy.megatron_cfg.context_parallel_size=4 \
  ++policy.train_global_batch_size=1024 \
  ++policy.max_total_sequence_length=32768 \
  ++policy.train_micro_batch_size=1 \
  cluster.num_nodes=64 cluster.gpus_per_node=8

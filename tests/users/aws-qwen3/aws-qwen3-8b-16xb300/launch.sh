torchrun --nnodes 2 --nproc-per-node 8 run_recipe.py --recipe qwen3_8b_pretrain_config \
  model.tensor_model_parallel_size=1 model.pipeline_model_parallel_size=1 \
  train.micro_batch_size=4 train.global_batch_size=128 model.seq_length=4096 \
  ddp.use_distributed_optimizer=true ddp.overlap_grad_reduce=true ddp.overlap_param_gather=true

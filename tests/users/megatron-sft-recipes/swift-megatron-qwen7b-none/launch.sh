NPROC_PER_NODE=8 megatron sft \
        --model Qwen/Qwen2.5-7B-Instruct --dataset train.jsonl --save_safetensors true \
        --tensor_model_parallel_size 2 --pipeline_model_parallel_size 1 --sequence_parallel true \
        --micro_batch_size 1 --global_batch_size 8 --packing true --max_length 4096 \
        --lr 1e-5 --min_lr 1e-6 --lr_warmup_fraction 0.1 --lr_decay_style cosine --train_iters 50 --finetune true \
        --cross_entropy_loss_fusion true --recompute_granularity none --use_distributed_optimizer true \
        --overlap_grad_reduce true --overlap_param_gather true --output_dir ckpt --save_steps 99999 \
        --dataloader_num_workers 4 --dataset_num_proc 8 --no_save_optim true --no_save_rng true

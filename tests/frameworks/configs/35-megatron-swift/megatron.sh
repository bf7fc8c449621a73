NPROC_PER_NODE=8 \
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
megatron sft \
    --model Qwen/Qwen3-8B \
    --load_safetensors true \
    --save_safetensors true \
    --dataset 'swift/Qwen3-SFT-Mixin#2000' \
    --tensor_model_parallel_size 2 \
    --sequence_parallel true \
    --context_parallel_size 2 \
    --micro_batch_size 1 \
    --global_batch_size 16 \
    --packing true \
    --recompute_granularity full \
    --recompute_method uniform \
    --recompute_num_layers 1 \
    --max_length 16384 \
    --finetune true \
    --cross_entropy_loss_fusion true \
    --attention_backend flash \
    --lr 1e-5 --min_lr 1e-6 --lr_warmup_fraction 0.05 \
    --max_epochs 1 \
    --save megatron_output/Qwen3-8B \
    --num_workers 4 --dataset_num_proc 4 \
    --no_save_optim true --no_save_rng true

# 8 * 80GiB
NPROC_PER_NODE=8 \
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \
swift sft \
    --model Qwen/Qwen2.5-7B-Instruct \
    --train_type full \
    --dataset 'swift/self-cognition#1000' \
    --torch_dtype bfloat16 \
    --max_length 32768 \
    --packing true \
    --attn_impl flash_attn \
    --use_liger_kernel true \
    --sequence_parallel_size 4 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 8 \
    --gradient_checkpointing true \
    --deepspeed zero3_offload \
    --learning_rate 1e-5 \
    --eval_steps 200 \
    --save_total_limit 2 \
    --logging_steps 5 \
    --output_dir output \
    --report_to swanlab

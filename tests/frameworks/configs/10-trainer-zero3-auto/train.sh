# full fine-tune, 8 GPUs
deepspeed --num_gpus=8 --master_port 29501 run_clm.py \
    --deepspeed ds_config.json \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --dataset_name wikitext --dataset_config_name wikitext-103-raw-v1 \
    --do_train --do_eval \
    --block_size 4096 \
    --per_device_train_batch_size 1 \
    --per_device_eval_batch_size 1 \
    --gradient_accumulation_steps 16 \
    --gradient_checkpointing True \
    --bf16 True --tf32 True \
    --learning_rate 1e-5 --weight_decay 0. --warmup_ratio 0.03 \
    --lr_scheduler_type "cosine" \
    --evaluation_strategy "no" \
    --save_strategy steps --save_steps 2000 --save_total_limit 1 \
    --logging_steps 1 \
    --output_dir /data/out --overwrite_output_dir

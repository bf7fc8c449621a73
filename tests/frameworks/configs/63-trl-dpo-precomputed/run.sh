trl dpo --model_name_or_path Qwen/Qwen3-1.7B --dataset_name trl-lib/ultrafeedback_binarized \
    --precompute_ref_log_probs True --max_length 2048 --per_device_train_batch_size 2 --output_dir dpo

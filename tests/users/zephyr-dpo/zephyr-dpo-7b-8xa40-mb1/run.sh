CUDA_VISIBLE_DEVICES=2,3,4,5,6,7,8,9 ACCELERATE_LOG_LEVEL=info accelerate launch --config_file deepspeed_zero3.yaml scripts/run_dpo.py config_full.yaml

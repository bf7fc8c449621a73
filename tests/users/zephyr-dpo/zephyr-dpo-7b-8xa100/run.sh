ACCELERATE_LOG_LEVEL=info accelerate launch --config_file deepspeed_zero3.yaml scripts/run_dpo.py config_full.yaml

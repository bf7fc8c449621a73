ACCELERATE_LOG_LEVEL=info accelerate launch --config_file deepspeed_zero3.yaml scripts/run_simpo.py simpo.yaml

NPROC_PER_NODE=8 xtuner train qwen_72b_full.py --deepspeed deepspeed_zero3_offload

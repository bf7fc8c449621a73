#!/bin/bash
uv run examples/run_sft.py --config examples/configs/sft.yaml \
    policy.model_name=meta-llama/Llama-3.1-8B policy.max_total_sequence_length=8192 cluster.gpus_per_node=8

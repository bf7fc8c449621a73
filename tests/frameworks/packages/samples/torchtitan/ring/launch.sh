#!/bin/bash
torchrun --nproc_per_node 8 -m torchtitan.train \
  --job.config_file torchtitan.toml --training.steps 10

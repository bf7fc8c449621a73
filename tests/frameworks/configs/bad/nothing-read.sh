#!/bin/bash
# The flags come from where this script does not say.
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py $FLAGS

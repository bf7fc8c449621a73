#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights \
  --vocab-size 128256 --tokenizer-type NullTokenizer --bf16 --lr 1e-5 --mock-data \
  --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 3 --global-batch-size 32 \
  --tensor-model-parallel-size 2

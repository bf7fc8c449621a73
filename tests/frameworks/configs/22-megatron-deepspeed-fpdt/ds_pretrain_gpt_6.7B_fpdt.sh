#!/bin/bash
dir=`pwd`
seq_len=131072
## GPT-3 6.7B
model_size=6.7
num_layers=32
hidden_size=4096
num_attn_heads=32
global_batch_size=1
lr=1.2e-4

mp_size=1
pp_size=1
no_pp="true"
zero_stage=3
sp_size=8
batch_size=1
train_iters=100
log_interval=1
fpdt_chunk_size=65536

template_json="examples_deepspeed/rebase/ds_config_gpt_TEMPLATE.json"

megatron_options=" \
    --override-opt_param-scheduler \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --tensor-model-parallel-size ${mp_size} \
    --init-method-std 0.02 \
    --micro-batch-size ${batch_size} \
    --lr ${lr} \
    --seq-length ${seq_len} \
    --max-position-embeddings ${seq_len} \
    --train-iters ${train_iters} \
    --global-batch-size ${global_batch_size} \
    --num-layers ${num_layers} \
    --hidden-size ${hidden_size} \
    --num-attention-heads ${num_attn_heads} \
    --ds-sequence-parallel-size ${sp_size} \
    --ds-sequence-parallel-fpdt \
    --ds-sequence-parallel-fpdt-chunk-size ${fpdt_chunk_size} \
    --ds-sequence-parallel-fpdt-offloading \
    --use-flash-attn-v2 \
    --use-rotary-position-embeddings \
    --no-pipeline-parallel \
    --bf16 \
    --vocab-file gpt2-vocab.json \
    --merge-file gpt2-merges.txt \
    --data-path data/my-gpt2_text_document \
    --log-interval ${log_interval}"

megatron_options="${megatron_options} \
    --checkpoint-activations \
    --deepspeed-activation-checkpointing \
    --checkpoint-in-cpu"

deepspeed_options=" \
    --deepspeed \
    --deepspeed_config ds_config.json \
    --zero-stage ${zero_stage} \
    --pipeline-model-parallel-size ${pp_size}"

deepspeed --num_gpus 8 pretrain_gpt.py ${megatron_options} ${deepspeed_options}

#!/bin/bash
# Llama 3.1 8B, one node

export CUDA_DEVICE_MAX_CONNECTIONS=1

CHECKPOINT_PATH=${1:-"checkpoints/llama3_8b"}
TOKENIZER_ARG=${2:-"MOCK"}

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-1}
MASTER_ADDR=${MASTER_ADDR:-localhost}
MASTER_PORT=${MASTER_PORT:-6000}
NODE_RANK=${NODE_RANK:-0}
WORLD_SIZE=$((GPUS_PER_NODE*NUM_NODES))

TP=2
CP=2
PP=1
MICRO_BATCH_SIZE=1
ACCUMULATION=16
GLOBAL_BATCH_SIZE=$((WORLD_SIZE / (TP * CP * PP) * MICRO_BATCH_SIZE * ACCUMULATION))
SEQ_LENGTH=$((8 * 1024))

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $NODE_RANK
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)

MODEL_ARGS=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length $SEQ_LENGTH
    --max-position-embeddings $SEQ_LENGTH
    --position-embedding-type rope
    --rotary-base 1000000
    --swiglu
    --normalization RMSNorm
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
)

TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH_SIZE
    --global-batch-size $GLOBAL_BATCH_SIZE
    --train-samples 1953125000
    --lr 0.00015
    --min-lr 0.00001
    --clip-grad 1.0
    --weight-decay 0.1
    --bf16
    # --fp8-format hybrid
    # --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --recompute-activations   # core attention only
    --cross-entropy-loss-fusion
    --manual-gc
    --manual-gc-interval 100
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --context-parallel-size $CP
    --pipeline-model-parallel-size $PP
    --sequence-parallel
)

DDP_ARGS=(
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

DATA_ARGS=(
    --mock-data
    --tokenizer-type NullTokenizer
    --vocab-size 128256
    --split '99,1,0'
)

EVAL_AND_LOGGING_ARGS=(
    --log-interval 1
    --eval-iters 32
    --save "$CHECKPOINT_PATH"
    --tensorboard-dir "$CHECKPOINT_PATH/tb"
)

if [ ! -d "$CHECKPOINT_PATH" ]; then
    mkdir -p "$CHECKPOINT_PATH"
fi

torchrun ${DISTRIBUTED_ARGS[@]} \
    pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} \
    ${DDP_ARGS[@]} \
    ${DATA_ARGS[@]} \
    ${EVAL_AND_LOGGING_ARGS[@]}

TP=1
PP=1
GPUS_PER_NODE=8
HIDDEN_SIZE=4096 # e.g. llama-13b: 5120
FFN_HIDDEN_SIZE=11008 # e.g. llama-13b: 13824
NUM_LAYERS=32 # e.g. llama-13b: 40
NUM_HEADS=32 # e.g. llama-13b: 40
SEQ_LENGTH=64
NUM_KV_HEADS=32 # llama2 70B uses GQA
MICRO_BATCH_SIZE=1
GLOBAL_BATCH_SIZE=8
TRAIN_STEPS=2
LR=3e-4
MIN_LR=3e-5
LR_WARMUP_STEPS=1
WEIGHT_DECAY=0.1
GRAD_CLIP=1
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes 1"
torchrun $DISTRIBUTED_ARGS \
       pretrain_gpt.py \
       --tensor-model-parallel-size $TP \
       --pipeline-model-parallel-size $PP \
       --num-layers $NUM_LAYERS \
       --hidden-size $HIDDEN_SIZE \
       --ffn-hidden-size $FFN_HIDDEN_SIZE \
       --num-attention-heads $NUM_HEADS \
       --micro-batch-size $MICRO_BATCH_SIZE \
       --global-batch-size $GLOBAL_BATCH_SIZE \
       --seq-length $SEQ_LENGTH \
       --max-position-embeddings $SEQ_LENGTH \
       --vocab-size 32000 \
       --swiglu --untie-embeddings-and-output-weights --disable-bias-linear --normalization RMSNorm \
       --use-rotary-position-embeddings --no-position-embedding \
       --use-distributed-optimizer \
       --bf16

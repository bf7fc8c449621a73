# A comment.
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 2 --node_rank "${NODE_RANK:-0}" --nproc_per_node 8 \
  --master_addr "${MASTER_ADDR:-localhost}" --master_port 29500 \
  pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --normalization RMSNorm --swiglu \
  --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights \
  --tokenizer-type NullTokenizer --vocab-size 128256 --mock-data --train-iters 4 --lr 1e-5 \
  --seq-length 131072 --max-position-embeddings 131072 --micro-batch-size 1 --global-batch-size 4 \
  --bf16 --tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 4 \
  --cp-comm-type p2p --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --optimizer-cpu-offload --optimizer-offload-fraction 1.0 --overlap-cpu-optimizer-d2h-h2d \
  --use-precision-aware-optimizer --mlp-chunks-for-training 4 --cross-entropy-loss-fusion \
  --cross-entropy-fusion-impl native

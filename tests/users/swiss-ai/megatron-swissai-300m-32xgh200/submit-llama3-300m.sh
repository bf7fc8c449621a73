MBS=2
GBS=256
SEQ_LEN=4096
torchrun pretrain_gpt.py \
  --use-precision-aware-optimizer \
  --main-grads-dtype bf16 \
  --num-layers 6 \
  --hidden-size 2048 \
  --ffn-hidden-size 6144 \
  --num-attention-heads 16 \
  --group-query-attention \
  --num-query-groups 4 \
  --max-position-embeddings 4096 \
  --position-embedding-type rope \
  --rotary-base 500000 \
  --rope-scaling-factor 32 \
  --make-vocab-size-divisible-by 128 \
  --normalization RMSNorm \
  --swiglu \
  --attention-dropout 0 \
  --hidden-dropout 0 \
  --micro-batch-size 2 \
  --global-batch-size 256 \
  --no-check-for-nan-in-loss-and-grad \
  --cross-entropy-loss-fusion \
  --disable-bias-linear \
  --optimizer adam \
  --bf16 \
  --tensor-model-parallel-size 1 \
  --pipeline-model-parallel-size 1 \
  --context-parallel-size 1 \
  --use-distributed-optimizer \
  --overlap-grad-reduce \
  --overlap-param-gather \
  --seq-length 4096

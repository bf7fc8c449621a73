TP_SIZE=2
PP_SIZE=1
WORLD_SIZE=4
MICRO_BATCH_SIZE=4
GLOBAL_BATCH_SIZE=128
torchrun pretrain_gpt.py \
  --sequence-parallel \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 1 \
  --num-layers 32 \
  --hidden-size 4096 \
  --num-attention-heads 32 \
  --seq-length 4096 \
  --max-position-embeddings 4096 \
  --no-position-embedding \
  --use-rotary-position-embeddings \
  --swiglu \
  --ffn-hidden-size 11008 \
  --disable-bias-linear \
  --RMSNorm \
  --layernorm-epsilon 1e-06 \
  --make-vocab-size-divisible-by 1 \
  --micro-batch-size 4 \
  --global-batch-size 128 \
  --overlapped-distributed-optimizer \
  --reduce-bucket-size 200000000 \
  --no-gradient-accumulation-fusion \
  --bf16 \
  --recompute-activations \
  --recompute-granularity selective \
  --use-flash-attn torchrun \
  --nproc_per_node 4

NPROC=8
torchrun --standalone --nproc-per-node=$NPROC pretrain_gpt.py \
  --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params \
  --no-gradient-accumulation-fusion --init-model-with-meta-device \
  --ckpt-format fsdp_dtensor \
  --num-layers=36 --hidden-size=4096 --ffn-hidden-size=12288 --num-attention-heads=32 \
  --group-query-attention --num-query-groups=8 --kv-channels=128 \
  --swiglu --qk-layernorm --normalization=RMSNorm --disable-bias-linear \
  --position-embedding-type=rope --untie-embeddings-and-output-weights \
  --seq-length=32768 --max-position-embeddings=32768 \
  --micro-batch-size=1 --global-batch-size=8 \
  --context-parallel-size=4 --cp-comm-type=a2a \
  --recompute-granularity=full --recompute-method=uniform --recompute-num-layers=1 \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --mlp-chunks-for-training=4 \
  --bf16 --optimizer=adam --lr=1e-5 --train-iters=100 \
  --tokenizer-type=NullTokenizer --vocab-size=151936 --make-vocab-size-divisible-by=128 --mock-data \
  --wandb-project=long --wandb-exp-name=q3-8b

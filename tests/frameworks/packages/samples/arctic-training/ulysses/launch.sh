arctic_training train.yaml \
  --num_gpus 8

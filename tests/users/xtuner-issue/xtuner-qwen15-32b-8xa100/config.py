pretrained_model_name_or_path = 'Qwen1.5-32B-Chat'
use_varlen_attn = False
max_length = 200
pack_to_max_length = False
sequence_parallel_size = 1
batch_size = 1
accumulative_counts = 1
optim_type = 'AdamW'

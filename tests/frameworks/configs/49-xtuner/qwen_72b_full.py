# From xtuner/configs/qwen/qwen1_5, cut to what differs between users.
from mmengine.optim import AmpOptimWrapper
from torch.optim import AdamW
from transformers import AutoModelForCausalLM

pretrained_model_name_or_path = 'Qwen/Qwen1.5-72B'
use_varlen_attn = False
max_length = 2048
pack_to_max_length = True
batch_size = 1  # per_device
accumulative_counts = 16
dataloader_num_workers = 0
max_epochs = 3
optim_type = AdamW
lr = 2e-5

"""Megatron-LM: the flags of launch.sh, with parse_args and validate_args of megatron-core.

argparse refuses unknown flags. Faked: eight GPUs of compute capability 9.0. The package asks for
Python 3.12, of which it uses typing.override alone. Without Transformer Engine and apex, two
fusions must be switched off; flags that do so are added.
"""

import os
import sys
import typing

import torch
import typing_extensions
from files import command, processes_here, torchrun

if not hasattr(typing, "override"):
    typing.override = typing_extensions.override
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 8
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: type("Properties", (), {"major": 9, "minor": 0})()

# pylint: disable=wrong-import-position
from megatron.training.arguments import (  # noqa: E402
    core_transformer_config_from_args,
    parse_args,
    validate_args,
)

ADDED = ["--no-rope-fusion", "--no-gradient-accumulation-fusion"]
HARMLESS = [r"^\w+ [. ]*\S*$"]  # its list of all arguments


def problems(folder):
    """What is wrong with a folder."""
    world, _, flags = torchrun(command(folder))
    processes_here(world)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    sys.argv = ["pretrain_gpt.py", *flags, *(flag for flag in ADDED if flag not in flags)]
    core_transformer_config_from_args(validate_args(parse_args()))
    return []

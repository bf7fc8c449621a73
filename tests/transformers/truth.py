"""What transformers makes of a folder: the training that Longspan is held to.

Restates docs/training.md with PyTorch's own optimizer, and shares no code with the engine.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEQUENCE, STEPS, WARMUP = 48, 3, 1
# The rate is small, because where a gradient is close to zero Adam makes a whole step of its rounding
# error; the decay is large, so that it counts in so few steps.
RATE, LEAST_RATE, DECAY, CLIP = 1e-4, 1e-5, 5.0, 2.0
WINDOWS, VOCABULARY = 5, 199  # fewer windows than some runs take, so that they start again

TOKENS = np.random.default_rng(7).integers(0, VOCABULARY, WINDOWS * SEQUENCE + 30)


def write_folder(folder, config, tensors=None):
    """A folder as on the hub: random weights, at which every part of the model matters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(
                1.5 * noise / math.sqrt(model.config.hidden_size)
                if p.ndim > 1
                else p + 0.3 * noise
            )
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        edit_tensors(folder, tensors)


def edit_tensors(folder, edit):
    file = folder / "model.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in edit(load_file(file)).items()}
    save_file(tensors, file, {"format": "pt"})


def load(folder):
    """The model in float32, without dropout."""
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if loading["missing_keys"] or loading["mismatched_keys"]:
        raise ValueError("the weights are not those of the model")
    return model.eval()


def loss_of(model, window):
    """The mean over the labels of one window; windows share the token at their boundary.

    With the auxiliary loss of experts, if the folder asks for it."""
    first = window % WINDOWS * SEQUENCE
    tokens = torch.from_numpy(TOKENS[first : first + SEQUENCE + 1])
    output = model(input_ids=tokens[None, :-1], use_cache=False)
    loss = torch.nn.functional.cross_entropy(output.logits[0], tokens[1:])
    auxiliary = getattr(output, "aux_loss", None)
    if auxiliary is None:
        return loss
    return loss + model.config.router_aux_loss_coef * auxiliary


def rate(step):
    if step <= WARMUP:
        return RATE * step / WARMUP
    share = (step - WARMUP) / (STEPS - WARMUP)
    return LEAST_RATE + (RATE - LEAST_RATE) * (1 + math.cos(math.pi * share)) / 2


@dataclass
class Training:
    losses: list  # of the steps, before their updates
    norms: list  # of the gradients, before clipping
    moments: dict  # the first, by tensor
    loss_after: float  # on the windows that would follow


def train(folder, windows):
    """Trains with `windows` windows in a step."""
    return train_model(load(folder), windows)


def train_model(model, windows):
    """The same for a model of which some parameters may be frozen."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    # Biases do not decay, not even those of experts, which are a matrix.
    decays = {name for name, p in named.items() if p.ndim > 1 and "bias" not in name}
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in named.items() if n in decays], "weight_decay": DECAY},
            {"params": [p for n, p in named.items() if n not in decays], "weight_decay": 0},
        ],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        total = 0.0
        for window in range((step - 1) * windows, step * windows):
            loss = loss_of(model, window) / windows
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), CLIP).item())
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
    moments = {name: optimizer.state[p]["exp_avg"] for name, p in named.items()}
    return Training(losses, norms, moments, loss_after(model, windows))


def loss_after(model, windows):
    with torch.no_grad():
        after = range(STEPS * windows, (STEPS + 1) * windows)
        return sum(loss_of(model, window).item() for window in after) / windows

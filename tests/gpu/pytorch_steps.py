#!/usr/bin/env python3
"""Training steps of a Llama-shaped model in PyTorch, to compare with: one line of JSON with tokens
per second and peak memory, of the median step after the first.

As Hugging Face's models do it: fused scaled_dot_product_attention, activation checkpointing by layer,
bfloat16 by autocast over float32 weights, fused AdamW. With --offload the checkpoints wait on the
host; with --loss-chunk the loss takes that many tokens at a time, so that the logits of a long sequence
need not fit.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def read_model(path):
    """Flat `key: value` lines of a model's YAML."""
    values = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            key, colon, value = line.split("#")[0].partition(":")
            if colon and value.strip():
                values[key.strip()] = value.strip()
    return values


def tokens(text):
    """4096, 32K or 1M."""
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


class RmsNorm(torch.nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.epsilon)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


class Layer(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        d, h, g, w, f = m["hidden"], m["heads"], m["kv_heads"], m["head_dim"], m["ffn"]
        self.heads, self.kv_heads, self.head_dim = h, g, w
        linear = lambda n, k: torch.nn.Linear(n, k, bias=False)
        self.norm1, self.norm2 = RmsNorm(d, m["norm_eps"]), RmsNorm(d, m["norm_eps"])
        self.q, self.k, self.v, self.o = linear(d, h * w), linear(d, g * w), linear(d, g * w), linear(h * w, d)
        self.gate, self.up, self.down = linear(d, f), linear(d, f), linear(f, d)

    def forward(self, x, cos, sin):
        batch, n, _ = x.shape
        a = self.norm1(x)
        split = lambda y, heads: y.view(batch, n, heads, self.head_dim).transpose(1, 2)
        q = rotate(split(self.q(a), self.heads), cos, sin)
        k = rotate(split(self.k(a), self.kv_heads), cos, sin)
        v = split(self.v(a), self.kv_heads)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(o.transpose(1, 2).reshape(batch, n, -1))
        a = self.norm2(x)
        return x + self.down(F.silu(self.gate(a)) * self.up(a))


class Model(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embedding = torch.nn.Embedding(m["vocab"], m["hidden"])
        self.layers = torch.nn.ModuleList(Layer(m) for _ in range(m["layers"]))
        self.norm = RmsNorm(m["hidden"], m["norm_eps"])
        self.head = torch.nn.Linear(m["hidden"], m["vocab"], bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets, cos, sin, args):
        x = self.embedding(tokens)
        if args.dtype == "bfloat16":
            x = x.bfloat16()
        for layer in self.layers:
            if not args.checkpoint:
                x = layer(x, cos, sin)
            elif args.offload:
                with torch.autograd.graph.save_on_cpu(pin_memory=args.device == "cuda"):
                    x = checkpoint(layer, x, cos, sin, use_reentrant=False)
            else:
                x = checkpoint(layer, x, cos, sin, use_reentrant=False)
        x = self.norm(x)
        part = args.loss_chunk or x.shape[1]
        loss_of = lambda y, t: F.cross_entropy(self.head(y).float().flatten(0, 1), t.flatten(), reduction="sum")
        total = 0
        for first in range(0, x.shape[1], part):
            y, t = x[:, first:first + part], targets[:, first:first + part]
            total = total + (checkpoint(loss_of, y, t, use_reentrant=False) if args.loss_chunk else loss_of(y, t))
        return total / targets.numel()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model's YAML with numbers for every field")
    parser.add_argument("--seq", type=tokens, required=True, help="tokens of a sequence, e.g. 32K")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=0, help="of the CPU (default: PyTorch's choice)")
    parser.add_argument("--checkpoint", action="store_true", help="recompute each layer in the backward")
    parser.add_argument("--offload", action="store_true", help="keep the checkpoints on the host")
    parser.add_argument("--loss-chunk", type=int, default=0, help="tokens of the loss at a time (default: all)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    given = read_model(args.model)
    m = {k: int(given[k]) for k in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")}
    m["norm_eps"] = float(given["norm_eps"])
    on_gpu = args.device == "cuda"
    torch.manual_seed(1)
    with torch.device(args.device):
        model = Model(m)
        text = torch.randint(m["vocab"], (1, args.seq + 1))
        inverse = float(given["rope_theta"]) ** (-torch.arange(0, m["head_dim"], 2) / m["head_dim"])
        angles = torch.outer(torch.arange(args.seq), torch.cat((inverse, inverse)))
    kept = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
    cos, sin = angles.cos().to(kept), angles.sin().to(kept)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    seconds = []
    for _ in range(args.steps):
        wait()
        begin = time.perf_counter()
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = model(text[:, :-1], text[:, 1:], cos, sin, args)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[1:] or seconds)
    peak = (torch.cuda.max_memory_allocated() if on_gpu
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    print(json.dumps({"pytorch": torch.__version__, "seq": args.seq, "step_seconds": step,
                      "tokens_per_second": args.seq / step, "peak_bytes": peak, "loss": loss.item(),
                      "checkpoint": args.checkpoint, "offload": args.offload,
                      "loss_chunk": args.loss_chunk}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

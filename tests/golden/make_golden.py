#!/usr/bin/env python3
"""Makes the golden files in this script's folder: tiny models whose loss and gradients PyTorch computed.

Each folder holds a Hugging Face config.json, model.safetensors (weights under Hugging Face's names)
and expected.safetensors (the token ids as floats, the gradient of every weight under the weight's
name, and in the metadata the loss: the mean cross-entropy in nats over the S labels). Weights are
rounded to float32 before anything is computed, everything is computed in float64, and the gradients
are rounded to float32 when written.

To run it again (the files are committed, so only after changing this script):

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers safetensors
    /tmp/golden/bin/python tests/golden/make_golden.py

The models are written here from their published definitions with plain PyTorch. If `transformers`
is installed its models are given the same weights and must agree to 1e-10; without it the script
says so and goes on. Last made with torch 2.15.0, transformers 5.24.0, safetensors 0.8.0.
"""
import contextlib
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

MODELS = {
    "tiny_gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_embd": 24,
        "n_head": 3, "n_inner": None, "n_positions": 20, "n_ctx": 20, "vocab_size": 61,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": True},
    # Head dim 8 and base 10000 make wavelengths of 6, 63, 628 and 6283 tokens; the scaling keeps
    # the first, interpolates the second and slows down the others.
    "tiny_llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2,
        "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 40, "vocab_size": 53, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False,
        "hidden_act": "silu", "tie_word_embeddings": False,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 128}},
    "tiny_qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 1,
        "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1,
        "intermediate_size": 40, "vocab_size": 53, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
        "use_sliding_window": False, "tie_word_embeddings": True},
    "tiny_qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2,
        "hidden_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "intermediate_size": 36, "vocab_size": 53, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "attention_bias": False,
        "hidden_act": "silu", "use_sliding_window": False, "tie_word_embeddings": True},
    # Windows shorter than the sequence; the layer in the middle does not rotate.
    "tiny_smollm3": {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_hidden_layers": 3,
        "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 40, "vocab_size": 53, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6, "rope_theta": 5000.0, "attention_bias": False, "hidden_act": "silu",
        "pad_token_id": None, "use_sliding_window": True, "sliding_window": 7,
        "no_rope_layers": [1, 0, 1], "tie_word_embeddings": True,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    "tiny_olmo2": {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "num_hidden_layers": 2,
        "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 40, "vocab_size": 53, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "attention_bias": False,
        "hidden_act": "silu", "pad_token_id": None, "tie_word_embeddings": False},
    # A window longer than the sequence, the same RoPE in all layers, and 16 = 4^2 so that the
    # embedding's factor has no rounding.
    "tiny_gemma3": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 36, "vocab_size": 53,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 6, "sliding_window": 1024,
        "attention_bias": False, "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": None,
        "tie_word_embeddings": True},
}
SEQUENCE = 20
AGREEMENT = 1e-10


def is_gpt2(c):
    return c["model_type"] == "gpt2"


def shapes(c):
    """Every weight and its shape as in Hugging Face's files; GPT-2's matrices are [in, out]."""
    out = {}
    if is_gpt2(c):
        d, ffn = c["n_embd"], c["n_inner"] or 4 * c["n_embd"]
        out["transformer.wte.weight"] = (c["vocab_size"], d)
        out["transformer.wpe.weight"] = (c["n_positions"], d)
        for layer in range(c["n_layer"]):
            p = f"transformer.h.{layer}."
            for norm in ("ln_1", "ln_2"):
                out[p + norm + ".weight"] = out[p + norm + ".bias"] = (d,)
            for name, i, o in (("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d),
                               ("mlp.c_fc", d, ffn), ("mlp.c_proj", ffn, d)):
                out[p + name + ".weight"], out[p + name + ".bias"] = (i, o), (o,)
        out["transformer.ln_f.weight"] = out["transformer.ln_f.bias"] = (d,)
        return out
    d, ffn, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    dim = c.get("head_dim", d // heads)
    out["model.embed_tokens.weight"] = (c["vocab_size"], d)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        for norm in norms(c):
            out[p + norm + ".weight"] = (d,)
        for name, count in (("q", heads), ("k", c["num_key_value_heads"]),
                            ("v", c["num_key_value_heads"])):
            out[p + f"self_attn.{name}_proj.weight"] = (count * dim, d)
            if c["model_type"] == "qwen2":
                out[p + f"self_attn.{name}_proj.bias"] = (count * dim,)
        if c["model_type"] in ("qwen3", "gemma3_text", "olmo2"):
            of_token = c["model_type"] == "olmo2"
            out[p + "self_attn.q_norm.weight"] = (heads * dim if of_token else dim,)
            out[p + "self_attn.k_norm.weight"] = (
                c["num_key_value_heads"] * dim if of_token else dim,)
        out[p + "self_attn.o_proj.weight"] = (d, heads * dim)
        for name in ("gate", "up"):
            out[p + f"mlp.{name}_proj.weight"] = (ffn, d)
        out[p + "mlp.down_proj.weight"] = (d, ffn)
    out["model.norm.weight"] = (d,)
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], d)
    return out


def norms(c):
    """The norms of a layer, of the inputs of attention and MLP, and of their outputs."""
    if c["model_type"] == "olmo2":
        return ["post_attention_layernorm", "post_feedforward_layernorm"]
    if c["model_type"] == "gemma3_text":
        return ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                "post_feedforward_layernorm"]
    return ["input_layernorm", "post_attention_layernorm"]


def random_weights(c, generator):
    """Larger than a real initialization, so that no gradient is lost in rounding."""
    weights = {}
    for name, shape in shapes(c).items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        is_norm = "norm" in name or "ln_" in name
        if name.endswith("bias"):
            values = 0.2 * values
        elif is_norm:
            values = (0 if c["model_type"] == "gemma3_text" else 1) + 0.2 * values
        else:
            values = 0.3 * values
        weights[name] = values.float().double().requires_grad_()
    return weights


def attention(q, k, v, window=None):
    """Causal; q [S, H, D], k and v [S, Hkv, D]. A query sees `window` keys, with its own."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    if window is not None:
        hidden |= torch.ones_like(hidden).tril(-window)
    probabilities = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", probabilities, v).flatten(1)


def gpt2_logits(c, w, ids):
    d, heads, eps = c["n_embd"], c["n_head"], c["layer_norm_epsilon"]
    norm = lambda x, name: F.layer_norm(x, (d,), w[name + ".weight"], w[name + ".bias"], eps)
    dense = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: len(ids)]
    for layer in range(c["n_layer"]):
        p = f"transformer.h.{layer}."
        qkv = dense(norm(x, p + "ln_1"), p + "attn.c_attn")
        q, k, v = (part.unflatten(1, (heads, -1)) for part in qkv.split(d, dim=1))
        x = x + dense(attention(q, k, v), p + "attn.c_proj")
        inner = F.gelu(dense(norm(x, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh")
        x = x + dense(inner, p + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def rope_frequencies(c, dim):
    frequencies = []
    for i in range(dim // 2):
        frequency = c["rope_theta"] ** (-2 * i / dim)
        scaling = c.get("rope_scaling")
        if scaling:
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
            wavelength = 2 * math.pi / frequency
            if wavelength > original / low:
                frequency /= factor
            elif wavelength >= original / high:
                smooth = (original / wavelength - low) / (high - low)
                frequency = (1 - smooth) * frequency / factor + smooth * frequency
        frequencies.append(frequency)
    return torch.tensor(frequencies, dtype=torch.float64)


def rotate(x, frequencies):
    """x [S, heads, D]: the halves of D as real and imaginary parts of complex numbers."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


def llama_logits(c, w, ids):
    heads, kv_heads, eps = c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
    dim = c.get("head_dim", c["hidden_size"] // heads)
    frequencies = rope_frequencies(c, dim)
    gemma, olmo = c["model_type"] == "gemma3_text", c["model_type"] == "olmo2"
    norm = lambda x, name: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (
        w[name + ".weight"] + (1 if gemma else 0))
    dense = lambda x, name: F.linear(x, w[name + ".weight"], w.get(name + ".bias"))
    x = w["model.embed_tokens.weight"][ids]
    if gemma:
        x = x * math.sqrt(c["hidden_size"])
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        normed = x if olmo else norm(x, p + "input_layernorm")
        q = dense(normed, p + "self_attn.q_proj")
        k = dense(normed, p + "self_attn.k_proj")
        if olmo:  # over all heads of a token
            q, k = norm(q, p + "self_attn.q_norm"), norm(k, p + "self_attn.k_norm")
        q, k = q.unflatten(1, (heads, dim)), k.unflatten(1, (kv_heads, dim))
        v = dense(normed, p + "self_attn.v_proj").unflatten(1, (kv_heads, dim))
        if c["model_type"] in ("qwen3", "gemma3_text"):
            q, k = norm(q, p + "self_attn.q_norm"), norm(k, p + "self_attn.k_norm")
        if c.get("no_rope_layers", [1] * c["num_hidden_layers"])[layer]:
            q, k = rotate(q, frequencies), rotate(k, frequencies)
        slides = "layer_types" in c and c["layer_types"][layer] == "sliding_attention"
        added = dense(attention(q, k, v, c["sliding_window"] if slides else None),
                      p + "self_attn.o_proj")
        x = x + (norm(added, p + "post_attention_layernorm") if gemma or olmo else added)
        normed = x if olmo else norm(
            x, p + ("pre_feedforward_layernorm" if gemma else "post_attention_layernorm"))
        gate = dense(normed, p + "mlp.gate_proj")
        activated = F.gelu(gate, approximate="tanh") if gemma else F.silu(gate)
        added = dense(activated * dense(normed, p + "mlp.up_proj"), p + "mlp.down_proj")
        x = x + (norm(added, p + "post_feedforward_layernorm") if gemma or olmo else added)
    output = w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    return norm(x, "model.norm") @ output.T


def loss_and_gradients(c, weights, tokens):
    logits = (gpt2_logits if is_gpt2(c) else llama_logits)(c, weights, tokens[:-1])
    loss = F.cross_entropy(logits, tokens[1:])
    loss.backward()
    return loss.item(), {name: w.grad for name, w in weights.items()}


@contextlib.contextmanager
def float32_means_float64():
    """Inside a float64 model, transformers computes norms and rotary tables in float32. Renaming
    the type for the time of the comparison lets those agree to the last digits too."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved


def check_against_transformers(c, folder, weights, tokens, loss, gradients):
    try:
        import transformers
    except ImportError:
        print("  transformers is not installed: not compared with it")
        return
    with float32_means_float64():
        config = transformers.AutoConfig.from_pretrained(folder)
        config._attn_implementation = "eager"
        model = getattr(transformers, c["architectures"][0])(config).double().eval()
        state = {name: w.detach() for name, w in weights.items()}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected, unexpected
        assert all("lm_head" in name and c["tie_word_embeddings"] for name in missing), missing
        model.tie_weights()
        logits = model(tokens[None, :-1]).logits[0]
        assert logits.dtype == torch.float64
        their_loss = F.cross_entropy(logits, tokens[1:])
        their_loss.backward()
    theirs = dict(model.named_parameters())
    worst = abs(their_loss.item() - loss) / loss
    for name, gradient in gradients.items():
        difference = (theirs[name].grad - gradient).norm() / gradient.norm()
        worst = max(worst, difference.item())
    print(f"  transformers {transformers.__version__} agrees to {worst:.1e}")
    assert worst < AGREEMENT, worst


def main():
    here = pathlib.Path(__file__).parent
    for seed, (name, c) in enumerate(MODELS.items()):
        print(name)
        folder = here / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(c, indent=2) + "\n")
        generator = torch.Generator().manual_seed(seed)
        weights = random_weights(c, generator)
        tokens = torch.randint(c["vocab_size"], (SEQUENCE + 1,), generator=generator)
        loss, gradients = loss_and_gradients(c, weights, tokens)
        check_against_transformers(c, folder, weights, tokens, loss, gradients)
        save_file({n: w.detach().float().contiguous() for n, w in weights.items()},
                  folder / "model.safetensors", {"format": "pt"})
        expected = {n: g.float().contiguous() for n, g in gradients.items()}
        save_file({"tokens": tokens.float(), **expected}, folder / "expected.safetensors",
                  {"loss": repr(loss)})
        for written in folder.glob("*.safetensors"):
            written.chmod(0o644)
        print(f"  loss {loss}")


if __name__ == "__main__":
    main()

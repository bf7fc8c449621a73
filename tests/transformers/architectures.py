"""Small models of Hugging Face's architectures, and what may be different in the folder of one."""

from dataclasses import dataclass, field
from typing import Callable, Optional

import torch
from transformers import AutoConfig

ABSENT = object()

SIZES = dict(
    vocab_size=199,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=160,
    rms_norm_eps=1e-5,
)
BALANCED = dict(output_router_logits=True, router_aux_loss_coef=0.5)
GPT2_SIZES = dict(vocab_size=199, n_embd=48, n_layer=2, n_head=4, n_positions=160)
LLAMA3 = dict(
    rope_type="llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=40,
)


def rope(theta=5000.0, rope_type="default", **more):
    return {"rope_type": rope_type, "rope_theta": theta, **more}


# Those that Longspan trains: the model type, and what the config says besides the sizes.
TRAINED = {
    "llama": ("llama", dict(rope_parameters=rope())),
    "llama tied": ("llama", dict(tie_word_embeddings=True)),
    "llama 1-kv-head": ("llama", dict(num_key_value_heads=1, head_dim=20)),
    "llama biases": ("llama", dict(attention_bias=True)),
    "llama rope-llama3": ("llama", dict(rope_parameters=rope(**LLAMA3))),
    "llama rope-linear": ("llama", dict(rope_parameters=rope(rope_type="linear", factor=2.0))),
    "llama rope-yarn": (
        "llama",
        dict(
            rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
        ),
    ),
    "mistral": ("mistral", dict(sliding_window=None)),
    "mistral window": ("mistral", dict(sliding_window=11)),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", dict(tie_word_embeddings=True)),
    "qwen2 window": ("qwen2", dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen3": ("qwen3", dict(head_dim=16, rope_parameters=rope())),
    "qwen3 windows": (
        "qwen3",
        dict(
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=20,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "smollm3": ("smollm3", dict(pad_token_id=None, num_hidden_layers=5, rope_parameters=rope())),
    "smollm3 windows": (
        "smollm3",
        dict(
            pad_token_id=None,
            num_hidden_layers=4,
            use_sliding_window=True,
            sliding_window=7,
            no_rope_layers=[1, 0, 1, 0],
        ),
    ),
    "phi3": ("phi3", dict(pad_token_id=None, sliding_window=None)),
    "phi3 window": ("phi3", dict(pad_token_id=None, sliding_window=13)),
    "phi3 partial": (
        "phi3",
        dict(pad_token_id=None, rope_parameters=rope(partial_rotary_factor=0.5)),
    ),
    "qwen3 tied": ("qwen3", dict(head_dim=32, tie_word_embeddings=True, attention_bias=True)),
    "olmo2": ("olmo2", dict(pad_token_id=None)),
    "olmo2 biases": ("olmo2", dict(pad_token_id=None, attention_bias=True)),
    "mixtral": ("mixtral", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
    "qwen3_moe": (
        "qwen3_moe",
        dict(num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, head_dim=16),
    ),
    "qwen3_moe mixed": (
        "qwen3_moe",
        dict(
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            head_dim=16,
            norm_topk_prob=True,
            mlp_only_layers=[0],
        ),
    ),
    "olmoe": ("olmoe", dict(pad_token_id=None, num_experts=4, num_experts_per_tok=2)),
    "glm4_moe": (
        "glm4_moe",
        dict(
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=2,
            moe_intermediate_size=24,
            n_group=4,
            topk_group=2,
            head_dim=16,
        ),
    ),
    "gpt_oss": (
        "gpt_oss",
        dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=7),
    ),
    "mixtral balanced": (
        "mixtral",
        dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=None, **BALANCED),
    ),
    "qwen3_moe balanced": (
        "qwen3_moe",
        dict(
            num_hidden_layers=3,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            head_dim=16,
            mlp_only_layers=[1],
            **BALANCED,
        ),
    ),
    "olmoe balanced": (
        "olmoe",
        dict(pad_token_id=None, num_experts=4, num_experts_per_tok=2, **BALANCED),
    ),
    "gpt_oss balanced": (
        "gpt_oss",
        dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=7, **BALANCED),
    ),
    "gemma3": (
        "gemma3_text",
        dict(
            pad_token_id=None,
            num_hidden_layers=3,
            head_dim=16,
            query_pre_attn_scalar=20,
            sliding_window=7,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    ),
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", dict(n_inner=80, tie_word_embeddings=False)),
}

# Types of models that it refuses.
REFUSED = [
    *("cohere2", "deepseek_v3", "gemma", "gemma2", "gpt_neox", "granite", "phi", "qwen2_moe"),
    *("starcoder2",),
]


def config_of(kind, **fields):
    """All keys of a config.json, those at their defaults too."""
    sizes = GPT2_SIZES if kind == "gpt2" else SIZES
    config = AutoConfig.for_model(kind, **{**sizes, **fields})
    return {**config.to_dict(), "architectures": [architecture_of(kind)]}


def architecture_of(kind):
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as names

    return names[kind]


@dataclass(frozen=True)
class Change:
    """A difference of a folder: keys of its config.json, or its tensors."""

    name: str
    keys: dict = field(default_factory=dict)
    tensors: Optional[Callable] = None

    def of(self, config):
        both = {**config, **self.keys}
        return {key: value for key, value in both.items() if value is not ABSENT}


def others(value):
    """Other values of a key that has this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [2 * value or type(value)(1)]
    if value in ("silu", "gelu_new"):
        return ["gelu", "relu", "gelu_pytorch_tanh"]
    if isinstance(value, list) and value[:1] == ["full_attention"]:
        return [["sliding_attention", *value[1:]]]
    return []


def key_changes(config):
    """Each key of a config with other values, null and left out; keys of objects in it too."""
    for key, value in config.items():
        if key in ("architectures", "model_type", "transformers_version"):
            continue
        for other in [*others(value), None, ABSENT]:
            if other != value:
                yield Change(f"{key}: {'left out' if other is ABSENT else other}", {key: other})
        if isinstance(value, dict):
            for change in key_changes(value):
                yield Change(f"{key}.{change.name}", {key: change.of(value)})


def foreign_changes(config):
    """Keys of other architectures, with a value that says something."""
    seen = set(config)
    for kind in REFUSED:
        for key, value in config_of(kind).items():
            if key not in seen:
                seen.add(key)
                meant = [v for v in (value, *others(value)) if v]
                if meant:
                    yield Change(f"{key}: {meant[0]}, of {kind}", {key: meant[0]})


def rope_changes(config):
    """Spellings of RoPE, older ones and some that contradict each other."""
    bare = dict(rope_parameters=ABSENT)
    unlimited = {k: v for k, v in LLAMA3.items() if not k.startswith("original")}
    for inside in (None, "default", "linear", "llama3", "dynamic", "yarn", "longrope", "su"):
        scaling = inside and {"type": inside, "factor": 4.0}
        yield Change(f"older: {scaling}", dict(bare, rope_theta=700.0, rope_scaling=scaling))
    for scaling in (LLAMA3, unlimited, dict(LLAMA3, rope_theta=300.0)):
        for next_to in (
            {},
            {"rope_theta": 700.0},
            {"original_max_position_embeddings": 20},
            {"partial_rotary_factor": 0.5},
        ):
            yield Change(
                f"older: {scaling}, {next_to}", dict(bare, rope_scaling=scaling, **next_to)
            )
            yield Change(f"newer: {scaling}, {next_to}", dict(rope_parameters=scaling, **next_to))
    for newer in ({}, rope(700.0), rope(700.0, **LLAMA3), rope(**LLAMA3)):
        for older in (None, {}, {"rope_type": "default"}, LLAMA3, dict(LLAMA3, factor=16.0)):
            both = dict(rope_parameters=newer, rope_scaling=older)
            yield Change(f"newer {newer}, older {older}", both)
    yield Change(
        "rope of each kind of layer",
        dict(rope_parameters={"full_attention": rope()}, layer_types=["full_attention"] * 2),
    )


def label_changes(config):
    """Architectures that do not match the type, and the second names of GPT-2's sizes."""
    yield Change("architectures: left out", dict(architectures=ABSENT))
    yield Change("is_causal: False", dict(is_causal=False))
    for kind in ("gpt2", "llama", "mistral", "qwen2", "qwen3"):
        if kind != config["model_type"]:
            label = architecture_of(kind)
            yield Change(f"architectures: {label}", dict(architectures=[label]))
    for alias, key in AutoConfig.for_model(config["model_type"]).attribute_map.items():
        yield Change(f"{alias} for {key}", {key: ABSENT, alias: config[key]})
        yield Change(f"{alias} next to {key}", {alias: 2 * config[key]})


def tensor_changes(config):
    """Other forms of the weights."""

    def noise(shape):
        return 0.2 * torch.randn(shape, generator=torch.Generator().manual_seed(3))

    def own_output(tensors):
        table = next(
            t for n, t in tensors.items() if n.endswith(("embed_tokens.weight", "wte.weight"))
        )
        return {**tensors, "lm_head.weight": noise(table.shape)}

    def biases(tensors):
        made = {
            n[: -len("weight")] + "bias": noise(t.shape[:1])
            for n, t in tensors.items()
            if t.ndim == 2
        }
        return {**made, **tensors}

    def layer_more(tensors):
        return {
            **tensors,
            **{n.replace(".1.", ".2."): t for n, t in tensors.items() if ".1." in n},
        }

    def without(end):
        return lambda tensors: {n: t for n, t in tensors.items() if not n.endswith(end)}

    def as_type(dtype):
        return lambda tensors: {n: t.to(dtype) for n, t in tensors.items()}

    yield Change("weights: bfloat16", tensors=as_type(torch.bfloat16))
    yield Change("weights: float16", tensors=as_type(torch.float16))
    yield Change("weights: an output matrix of its own", tensors=own_output)
    yield Change("weights: a bias for every matrix", tensors=biases)
    yield Change("weights: a layer more", tensors=layer_more)
    yield Change("weights: no output matrix", tensors=without("lm_head.weight"))
    yield Change("weights: a norm less", tensors=without("1.input_layernorm.weight"))


def changes(config):
    yield from key_changes(config)
    yield from foreign_changes(config)
    if "rope_parameters" in config:
        yield from rope_changes(config)
    yield from label_changes(config)
    yield from tensor_changes(config)

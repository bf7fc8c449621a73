#!/usr/bin/env python3
"""Converts published measurements from CSV to the files that `longspan validate` reads.

    scripts/convert_published.py FOLDER_OF_CSV [tests/published]

Each CSV begins with a line `# source: ...`, which goes into the file: who measured, under which
licence, and what is known about the rows. A training run becomes a case (docs/validation.md is the
format); tables of kernels and collectives become plain data under ops/. What a source does not say
is said here, in the converter of its table, and as a `note` in the file.
"""
import csv
import json
import pathlib
import re
import sys
import textwrap

# Dense peak TFLOP/s that sources relate an MFU to; llm-foundry uses half of the H100's FP8 peak for
# 16 bits.
A100, H100, H100_FP8 = 312, 989, 1979

MAMBA = "layers of Mamba, which no model has"
LORA = "LoRA fine-tuning"


def latent(name, layers, hidden, ffn, vocab, dense, experts, **other):
    """A model of DeepSeek's form, of which the first `dense` layers have no experts."""
    return dict(name=name, layers=layers, hidden=hidden, heads=128, head_dim=192, ffn=ffn, vocab=vocab,
                max_positions=163840, norm="rmsnorm", activation="swiglu", positions="rope",
                norm_eps=1e-6, rope_theta=10000,
                latent=dict(query_rank=1536, key_rank=512, rotated_dim=64, value_dim=128),
                experts=experts, runs=[dict(layers=dense, experts=False), dict(layers=layers - dense)],
                **other)


V3_EXPERTS = dict(count=256, active=8, ffn=2048, shared_ffn=2048, scores="sigmoid",
                  selection_bias=True, groups=8, active_groups=4)
# Its rows count 4 % more FLOPs for a token than the one named "w/o MTP": that layer.
DEEPSEEK_V3_MTP = latent("deepseek-v3-mtp", 61, 7168, 18432, 129280, 3, V3_EXPERTS,
                         next_token_layers=1)


# ---------------------------------------------------------------- YAML, as compact as it reads well

def scalar(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, int):
        return str(value)
    if re.fullmatch(r"[A-Za-z_][\w./+()-]*( [\w./+()-]+)*", value) and value not in (
            "true", "false", "null", "yes", "no", "on", "off"):
        return value
    if re.fullmatch(r"\d+(\.\d+)?[KMG]i?B", value):
        return value
    return json.dumps(value, ensure_ascii=False)


def flow(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(v) for v in value) + "]"
    return scalar(value)


def laid_over(own, defaults):
    """What the reader makes of a case and the defaults."""
    merged = dict(defaults)
    for key, value in own.items():
        below = defaults.get(key)
        merged[key] = laid_over(value, below) if isinstance(value, dict) and isinstance(
            below, dict) else value
    return merged


# The columns that identify a row; written for each row unless all rows have the same value.
SUBJECT = ("stage_layers", "expert_capacity", "model", "layers", "gpus", "sequence", "micro_batch", "global_batch", "note")


def beyond(own, defaults):
    """What of a mapping its defaults do not say already."""
    return {key: beyond(value, defaults[key]) if key == "flops" and key in defaults else value
            for key, value in own.items() if flow(value) != flow(defaults.get(key, "\0"))}


def factored(rows, keep=("name", "measured", "peer")):
    """Defaults, and rows without what the defaults say."""
    defaults = {}
    for key in rows[0]:
        if key in keep or not all(key in row for row in rows):
            continue
        values = [flow(row[key]) for row in rows]
        most = max(set(values), key=lambda v: (values.count(v), v))
        if values.count(most) == len(rows) or (values.count(most) > 1 and key not in SUBJECT):
            defaults[key] = rows[values.index(most)][key]
    short = [beyond(row, defaults) for row in rows]
    for row, own in zip(rows, short):
        assert laid_over(own, defaults) == row, (row, own, defaults)
    return defaults, short


def source_of(line):
    """The source and the rest of the comment a CSV begins with."""
    text = line.removeprefix("# source: ").strip()
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth == 0 and text[i:i + 2] in (". ", "; "):
            return text[:i], text[i + 2:]
    return text, ""


def without_csv_remarks(text):
    text = re.sub(r"Header comment lines start with '#'\.?", "", text)
    return text.replace("my own run", "a run").strip()


def document(source_line, table, cases, models=()):
    source, remarks = source_of(source_line)
    lines = textwrap.wrap(without_csv_remarks(remarks), 98, initial_indent="# ",
                          subsequent_indent="# ", break_long_words=False, break_on_hyphens=False)
    lines += [f"table: {table}", f"source: {json.dumps(source)}"]
    if models:
        defaults, short = factored(list(models))
        lines += ["model_defaults:"] + [f"  {k}: {flow(v)}" for k, v in defaults.items()]
        lines += ["models:"] + [f"  - {flow(model)}" for model in short]
    defaults, short = factored(cases)
    lines += ["defaults:"] + [f"  {k}: {flow(v)}" for k, v in defaults.items()]
    lines += ["cases:"] + [f"  - {flow(case)}" for case in short]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- shared by several tables

def gpt(name, layers, hidden, heads, vocab, positions, tied=True, biases=True, ffn=None):
    model = dict(name=name, layers=layers, hidden=hidden, heads=heads, ffn=ffn or 4 * hidden,
                 vocab=vocab, max_positions=positions, norm="layernorm", activation="gelu",
                 positions="learned", norm_eps=1e-5)
    for key in ("qkv_bias", "attention_out_bias", "mlp_bias"):
        model[key] = biases
    return model | dict(tied_embeddings=tied)


def llama(name, layers, hidden, heads, ffn, vocab, positions):
    return dict(name=name, layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=vocab,
                max_positions=positions, norm="rmsnorm", activation="swiglu", positions="rope",
                norm_eps=1e-5, rope_theta=10000, tied_embeddings=False)


def flops(dense, attention, recomputed, peak=None):
    result = dict(dense=dense, attention=attention, recomputed=recomputed)
    return result | (dict(peak_tflops=peak) if peak else {})


def unique(cases):
    """Names of cases told apart by a number where two rows are configured alike."""
    seen = {}
    for case in cases:
        count = seen[case["name"]] = seen.get(case["name"], 0) + 1
        if count > 1:
            case["name"] += f" ({count})"
    return cases


def degrees(**named):
    return {name: value for name, value in named.items() if value != 1}


def longest(below):
    """Measured: the longest of the lengths that were tried, of which the next did not train."""
    return dict(longest=True, longest_below=below)


def length(tokens):
    if tokens % (1 << 20) == 0:
        return f"{tokens >> 20}M"
    return f"{tokens >> 10}K" if tokens % 1024 == 0 else str(tokens)


# ---------------------------------------------------------------- the tables

# arXiv 2506.13996, table 1: the iteration time if it is hours or minutes; the rate if it is seconds,
# which the table rounds to whole numbers.
ALST_TIMES = {
    "run-h100-sp1-llama-8b-baseline.yml": dict(model_tflops_per_gpu=189.4),
    "run-h100-sp32-llama-8b-baseline.yml": dict(model_tflops_per_gpu=393.6),
    "run-h100-sp1-llama-8b.yml": dict(step_time_s=1010),
    "run-h100-sp8-llama-8b.yml": dict(step_time_s=6455),
    "run-h100-sp32-llama-8b.yml": dict(step_time_s=26709),
}


# Lengths that are known to fail: 555K because of 32-bit addresses (issue 803 of Liger-Kernel).
ALST_FAILED = {"run-h100-sp1-llama-8b.yml": 555000}


def next_of_two_digits(tokens):
    """The grid of recipes is not stated, but no finer than their two leading digits."""
    unit = 10 ** (len(str(tokens)) - 2)
    return (tokens // unit + 1) * unit


def alst(rows):
    models = {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "Qwen/Qwen3-32B": "qwen3-32b",
              "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b"}
    cases = []
    for r in rows:
        gpus = int(r["num_gpus_sp"])
        offload = {}
        if r["act_ckpt_cpu_offload"] == "true":
            offload["checkpoints"] = [1]
        if r["offload_param"] == "true":
            offload["parameters"] = [1]
        # DeepSpeed's offloaded optimizer keeps the gradients on the host, too.
        offload |= {"gradients": [1], "optimizer": [1]}
        # Recipes without Ulysses keep sequence_parallel_size in the file, but the lengths and the
        # paper's rates are those of one sequence on each GPU.
        alone = "baseline" in r["recipe"] or "no-ulysses" in r["recipe"]
        tokens = int(r["max_seq_len"])
        measured = longest(ALST_FAILED.get(r["recipe"], next_of_two_digits(tokens)))
        measured |= ALST_TIMES.get(r["recipe"], {})
        if r["reported_gpu_mem_gb"]:
            # see_memory_usage() divides by 2^30 and prints "GB"; NV is the driver's figure.
            measured["peak_device"] = r["reported_gpu_mem_gb"] + "GiB"
        case = dict(name=r["recipe"].removesuffix(".yml"), model=models[r["model"]],
                    hardware={"h100": "aws-p5", "h200": "h200-141g"}[r["gpu"]], gpus=gpus,
                    stack={"flash_attention_2": "alst", "flash_attention_3": "alst-flash3", "sdpa": "alst-sdpa"}[r["attn"]],
                    precision="bf16", sequence=tokens, micro_batch=1,
                    global_batch=gpus if alone else 1, ulysses=1 if alone else gpus,
                    zero=int(r["zero_stage"]), recompute="full", offload=offload, tiled_mlp=r["tiled_mlp"] == "true",
                    tiled_loss=r["liger_tiled_loss"] == "true",
                    flops=flops("parameters", "full", "all", H100), measured=measured)
        notes = ["author: " + r["author_note"]] if r["author_note"] else []
        if r["recipe"] in ALST_TIMES:
            notes.append("speed: arXiv 2506.13996, table 1")
        if alone and gpus > 1:
            notes.append(f"the recipe says {gpus} sequence ranks, its length and name say none")
        if notes:
            case["note"] = "; ".join(notes)
        cases.append(case)
    return "alst", cases, ()


def easycontext(rows):
    cases = []
    for r in rows:
        ring = r["method"] == "ring attention"
        cases.append(dict(
            name=f"{r['method']} {length(int(r['seq_len']))}", model="llama-2-7b",
            hardware="dgx-a100-80g", gpus=8, stack="easycontext", precision="bf16",
            sequence=int(r["seq_len"]), micro_batch=1, global_batch=1 if ring else 8,
            ring=8 if ring else 1, zero=3, recompute="full",
            offload={"parameters": [1], "gradients": [1], "optimizer": [1]},
            measured=dict(tokens_per_s=int(r["tokens_per_s_8gpus"])),
            note="one micro-batch a step is assumed"))
    return "easycontext", cases, ()


def fpdt_run(method, gpus):
    run = dict(ulysses=gpus, zero=3, recompute="full")
    if method == "FPDT":
        run |= dict(offload={"checkpoints": [1]}, chunk=65536, tiled_mlp=True, tiled_loss=True)
    elif method == "Megatron-SP":
        run = dict(tensor=gpus, sequence_parallel=True, zero=0, recompute="full")
    return run


def fpdt_gpt(size, layers, hidden, heads):
    # Its example uses RoPE instead of learned positions, whose table would need millions of rows.
    return gpt(f"fpdt-gpt-{size}", layers, hidden, heads, 50257, 2048) | dict(
        positions="rope", rope_theta=10000)


# Llama runs out of memory at the same lengths as GPT 6.7B, hence with the vocabulary of GPT-2, which
# the example's tokenizer has. With Llama's own, logits would be 2.5 times as large.
FPDT_LLAMA_8B = llama("fpdt-llama-8b", 32, 4096, 32, 14336, 50257, 8192) | dict(kv_heads=8)
FPDT_LLAMA_70B = llama("fpdt-llama-70b", 80, 8192, 64, 28672, 50257, 8192) | dict(kv_heads=8)


def fpdt_figure(rows):
    shapes = [fpdt_gpt("2.7b", 32, 2560, 32), fpdt_gpt("6.7b", 32, 4096, 32),
              fpdt_gpt("13b", 40, 5120, 40), fpdt_gpt("30b", 64, 6144, 64), FPDT_LLAMA_8B,
              FPDT_LLAMA_70B]
    models = {"GPT-2.7B": "fpdt-gpt-2.7b", "GPT-6.7B": "fpdt-gpt-6.7b",
              "GPT-13B": "fpdt-gpt-13b", "GPT-30B": "fpdt-gpt-30b", "Llama3-8B": "fpdt-llama-8b",
              "Llama-70B": "fpdt-llama-70b", "Llama3-70B": "fpdt-llama-70b"}
    last = {(r["model"], r["method"]): int(r["seq_len"]) for r in rows}
    cases = []
    for r in rows:
        gpus, sequence = int(r["num_gpus"]), int(r["seq_len"])
        measured = dict(mfu=float(r["mfu_pct"]) / 100)
        if r["method"] != "FPDT" and sequence == last[r["model"], r["method"]]:
            measured |= longest(2 * sequence)
        cases.append(dict(
            name=f"{r['model']} {r['method']} {length(sequence)}", model=models[r["model"]],
            hardware="a100-80g-quad", gpus=gpus, gpus_per_node=4, stack="fpdt" if r["method"] ==
            "FPDT" else "megatron-deepspeed-2024", precision="bf16", sequence=sequence, micro_batch=1,
            global_batch=1, **fpdt_run(r["method"], gpus),
            flops=flops("products", "causal", "all", A100), measured=measured))
    for case in cases:
        case["note"] = ("what the MFU counts is not stated: causal attention, with which the longest "
                        "runs are as fast as FlashAttention 2 (whole squares would make them half as "
                        "fast); nodes of 4 as the fall from 4 to 8 GPUs suggests; the vocabulary of GPT-2 "
                        "for all models, as their longest sequences suggest")
    used = {case["model"] for case in cases}
    return "fpdt-figure-4", cases, [shape for shape in shapes if shape["name"] in used]


def fpdt_table(rows):
    cases = []
    for r in rows:
        on = {key: r[key] == "1" for key in ("tp", "ac", "oc", "ulysses", "fpdt")}
        run = fpdt_run("FPDT" if on["fpdt"] else "Megatron-SP" if on["tp"] else "Ulysses", 8)
        run |= dict(zero=int(r["zero"]), recompute="full" if on["ac"] else "none")
        if on["tp"]:
            # The memory at 32K matches unsharded norms and sums on every rank; sharded, a third would be left.
            run["sequence_parallel"] = False
        if on["oc"]:
            run["offload"] = {"checkpoints": [1]}
        words = ["FPDT" if on["fpdt"] else "TP" if on["tp"] else "Ulysses"]
        words += [w for w, key in (("AC", "ac"), ("offload", "oc")) if on[key]]
        words += [f"ZeRO-{r['zero']}"] if r["zero"] != "0" else []
        cases.append(dict(
            name=" ".join(words), model="fpdt-llama-8b", hardware="a100-80g-quad", gpus=8,
            gpus_per_node=4, stack="fpdt" if on["fpdt"] else "megatron-deepspeed-2024",
            precision="bf16", sequence=int(r["max_len"]), micro_batch=1, global_batch=1, **run,
            flops=flops("products", "causal", "all" if on["ac"] else "none", A100),
            measured=dict(mfu=float(r["mfu_pct"]) / 100, peak_device=r["hbm_gb"] + "GiB",
                          **longest(2 * int(r["max_len"]))),
            note="GB are read as GiB, as the code base prints them; nodes of 4 and the vocabulary "
                 "of GPT-2 are assumed; causal attention is counted, as in the figure"))
    return "fpdt-ablation", cases, [FPDT_LLAMA_8B]


def llm_foundry(table, hardware, precision, peak):
    def convert(rows):
        models, cases = {}, []
        # The position table has as many rows as the sequence; the reader extends that of the shortest.
        shortest = min(int(r["seqlen_t"]) for r in rows)
        for r in rows:
            name = "mpt-" + r["model"]
            models[name] = gpt(name, int(r["n_layers"]), int(r["d_model"]), int(r["n_heads"]),
                               50368, shortest)
            checkpoint = r["activation_checkpointing"] == "True"
            zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}[r["sharding_strategy"]]
            offload = dict(offload={"checkpoints": [1]}) if r["activation_cpuoffload"] in (
                "True", "true") else {}
            gpus = int(r["num_gpus"])
            # Its micro-batches need not divide a batch; the last is then smaller.
            uneven = int(r["globalbatchsize"]) % (gpus * int(r["microbatchsize"])) != 0
            left_out = dict(left_out="micro-batches of different sizes") if uneven else {}
            cases.append(dict(
                **left_out, name=f"{r['model']} {length(int(r['seqlen_t']))} x {r['microbatchsize']} "
                     f"on {gpus}" + (" AC" if checkpoint else ""),
                model=name, hardware=hardware, gpus=gpus, stack="llm-foundry" +
                ("-pure" if r["mp_mode"] == "PURE" else ""), precision=precision,
                sequence=int(r["seqlen_t"]), micro_batch=int(r["microbatchsize"]),
                global_batch=int(r["globalbatchsize"]), zero=zero, **offload,
                recompute="full" if checkpoint else "none",
                flops=flops("parameters", "full", "none", peak),
                measured=dict(tokens_per_s=int(r["throughput_t_s"]),
                              model_tflops_per_gpu=int(r["model_tflops_per_gpu"]),
                              mfu=round(float(r["mfu_pct"]) / 100, 6))))
        return table, unique(cases), list(models.values())
    return convert


def megatron_22b(name, row):
    layers = {"22B": (48, 6144, 64), "175B": (96, 12288, 96), "530B": (105, 20480, 128),
              "1T": (128, 25600, 160)}[row["model"]]
    return gpt(name, *layers, 51200, 2048)


SEQSEL = {"22B": (8, 1, 1, 4, 4), "175B": (64, 8, 3, 64, 1), "530B": (280, 35, 3, 280, 1),
          "1T": (512, 64, 1, 512, 1)}  # GPUs, pipeline, interleave, global and micro-batch


def seqsel_case(row, mode, extra):
    gpus, pipeline, interleave, batch, micro = SEQSEL[row["model"]]
    name = "gpt-" + row["model"].lower()
    recompute, parallel = {"none": ("none", False), "full_recompute": ("full", False),
                           "seq_parallel+selective": ("selective", True),
                           "seq+selective": ("selective", True),
                           "seq": ("none", True), "selective": ("selective", False),
                           "full": ("full", False)}[mode]
    case = dict(name=f"{row['model']} {mode}", model=name, hardware="selene", gpus=gpus,
                stack="megatron-lm", precision="fp16", sequence=2048, micro_batch=micro,
                global_batch=batch, tensor=8, pipeline=pipeline, virtual_stages=interleave, zero=0,
                sequence_parallel=parallel, recompute=recompute, flash_attention=False)
    return case | extra, megatron_22b(name, row)


def seqsel_times(rows):
    models, cases = {}, []
    for r in rows:
        assert SEQSEL[r["model"]] == tuple(
            int(r[k]) for k in ("num_gpus", "pp", "interleave", "global_batch", "micro_batch"))
        case, model = seqsel_case(r, r["mode"], dict(
            measured=dict(step_time_s=float(r["measured_iter_s"])),
            peer=dict(name="Calculon", step_time_s=float(r["calculon_pred_s"]))))
        models[model["name"]] = model
        cases.append(case)
    return "megatron-recomputation-times", cases, list(models.values())


def seqsel_memory(rows):
    """The paper gives states and activations apart: a run holds both."""
    states, models, cases = {}, {}, []
    for r in rows:
        if r["category"] == "param+opt":
            states[r["model"]] = r
    for r in rows:
        if r["category"] != "activation":
            continue
        total = {key: float(r[key]) + float(states[r["model"]][key])
                 for key in ("reference_gib", "calculon_gib")}
        case, model = seqsel_case(r, r["mode"], dict(
            measured=dict(peak_allocated=f"{total['reference_gib']:.6f}GiB"),
            peer=dict(name="Calculon", peak_memory=f"{total['calculon_gib']:.2f}GiB"),
            note="the paper's own accounting of states and activations, not a measured peak"))
        models[model["name"]] = model
        cases.append(case)
    return "megatron-recomputation-memory", cases, list(models.values())


def ptdp_times(rows):
    models, cases = [], []
    for r in rows:
        name = f"gpt-{r['params_b']}b"
        models.append(gpt(name, int(r["layers"]), int(r["hidden"]), int(r["attention_heads"]),
                          51200, 2048))
        cases.append(dict(
            name=f"{r['params_b']}B on {r['num_gpus']}", model=name, hardware="selene",
            gpus=int(r["num_gpus"]), stack="megatron-lm-2021", precision="fp16", sequence=2048,
            global_batch=int(r["global_batch"]), tensor=int(r["tp"]), pipeline=int(r["pp"]),
            zero=0, recompute="full", flash_attention=False,
            flops=flops("products", "full", "layers", A100),
            measured=dict(model_tflops_per_gpu=int(r["tflops_per_gpu_incl_recompute"])),
            note="micro-batch and interleaving are not published"))
    return "ptdp-weak-scaling", cases, models


def ptdp_zero(rows):
    shapes = {"174.6": (96, 12288, 96, 12), "529.6": (105, 20480, 128, 35)}
    models = [gpt(f"gpt-{size}b", *shape[:3], 51200, 2048) for size, shape in shapes.items()]
    cases = []
    for r in rows:
        sharded = r["scheme"] == "ZeRO-3"
        cases.append(dict(
            name=f"{r['scheme']} {r['params_b']}B on {r['num_gpus']}",
            model=f"gpt-{r['params_b']}b", hardware="selene", gpus=int(r["num_gpus"]),
            stack="deepspeed" if sharded else "megatron-lm-2021", precision="fp16", sequence=2048,
            micro_batch=int(r["micro_batch"]), global_batch=int(r["global_batch"]),
            tensor=1 if sharded else 8, pipeline=1 if sharded else shapes[r["params_b"]][3],
            zero=3 if sharded else 0, recompute="full", flash_attention=False,
            flops=flops("products", "full", "layers", A100),
            measured=dict(model_tflops_per_gpu=int(r["tflops_per_gpu"])),
            note=f"{r['days_300B_tokens']} days for 300 billion tokens; interleaving is not "
                 "published"))
    return "ptdp-zero-3", cases, models


def weak_scaling_h100(rows):
    models, cases = [], []
    for r in rows:
        name = "gpt-" + r["model"].lower()
        models.append(gpt(name, int(r["layers"]), int(r["hidden"]), int(r["attention_heads"]),
                          131072, 4096, tied=False))
        cases.append(dict(
            name=f"{r['model']} on {r['num_gpus']}", model=name, hardware="dgx-h100",
            gpus=int(r["num_gpus"]), stack="megatron-core", precision="bf16", sequence=4096,
            global_batch=int(r["global_batch"]), tensor=int(r["tp"]), pipeline=int(r["pp"]),
            sequence_parallel=True, zero=1, flops=flops("products", "full", "none", H100),
            measured=dict(model_tflops_per_gpu=float(r["tflops_per_gpu"])),
            note="micro-batch, interleaving and recomputation are not published"))
    return "megatron-h100-weak-scaling", cases, models


def both(value, variant):
    """A cell "a (b)" holds two runs; others hold for both."""
    match = re.fullmatch(r"(\S+) \((.+)\)", value)
    return match.group(1 + variant) if match else value


BRIDGE_MODELS = {"LLAMA3_8B": "llama-3.1-8b", "LLAMA3_70B": "llama-3.1-70b",
                 "LLAMA3.1_405B": "llama-3.1-405b"}
BRIDGE_MOE = {"DeepSeekV3": DEEPSEEK_V3_MTP["name"], "GPT OSS 120B": "gpt-oss-120b",
              "Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b",
              "Kimi_K2": "kimi-k2"}


def bridge_moe(case, name, release, precision):
    """What the recipes of a release set besides (scripts/performance/configs there)."""
    model, _, variant = name.partition(" (")
    case["model"] = "deepseek-v3" if variant == "w/o MTP)" else BRIDGE_MOE[model]
    case["expert_tensor"] = 1
    if variant == "tokendrop)":
        case["expert_capacity"] = 1
    # Chunks of as many layers, the last with the layer of a second token and the loss in place of
    # three; one of a layer and the embedding where chunks have two.
    if model in ("DeepSeekV3", "Kimi_K2"):
        stages, chunks = case["pipeline"], case["virtual_stages"]
        each = -(-64 // (stages * chunks))
        layers = [each * chunks] * stages
        if each == 2:
            layers[0] -= 1
        layers[-1] -= sum(layers) - 61
        if stages > 1:
            case["stage_layers"] = layers
    # From 26.06 on, recipes of MXFP8 capture whole iterations, and those of gpt-oss from 26.08.
    year, month = (int(part) for part in release.split(".")[:2])
    late = (26, 8) if model == "GPT OSS 120B" else (26, 6)
    whole = precision == "mxfp8" and (year, month) >= late and not (
        model == "DeepSeekV3" and case["hardware"] == "dgx-b300")
    # Until 26.06 its FLOPs are a fifth fewer than its tokens and all later rows say.
    if model == "GPT OSS 120B" and (year, month) < (26, 6):
        del case["measured"]["model_tflops_per_gpu"]
    # Parts of a layer are captured on racks, and of small models on servers with Blackwell.
    racks = case["hardware"].endswith("nvl72")
    small = case["hardware"] in {"Qwen3_30B_a3B": ("dgx-b200", "dgx-b300"),
                                 "GPT OSS 120B": ("dgx-b300",)}.get(model, ())
    if whole:
        case["stack"] = "megatron-bridge-graphs"
    elif not racks and not (small and (year, month) >= (26, 2)):
        case["stack"] = "megatron-bridge-eager" if year >= 26 else "megatron-bridge-2025"


def bridge_case(r, variant, two):
    cell = {key: both(value, variant) for key, value in r.items()
            if key not in ("release", "kind", "model")}
    whole = lambda key: int(cell[key]) if cell[key] not in ("", "n/a") else 1
    precision = {"FP8-CS": "fp8", "FP8-MX": "mxfp8", "": "mxfp8" if two and variant else "fp8"}.get(
        cell["precision"], cell["precision"].lower())
    dense = r["model"] in BRIDGE_MODELS
    mamba = r["model"].startswith("Nemotron")
    system, gpus = r["system"], int(cell["gpus"])
    racks = system in ("DGX-GB200", "DGX-GB300")
    hardware = {"DGX-GB200": "gb200-nvl72", "DGX-GB300": "gb300-nvl72"}.get(system, system.lower())
    release = r["release"].split()[0]
    kind = r["kind"].split()[0]
    case = dict(
        name=f"{release} {r['model']} {system} {precision}" +
             ("" if kind == "Pre-Training" else f" {kind}"),
        model=BRIDGE_MODELS.get(r["model"], r["model"]), hardware=hardware, gpus=gpus,
        gpus_per_node=64 if racks else 8, stack="megatron-bridge", precision=precision,
        sequence=int(cell["sequence_length"]), micro_batch=whole("mbs"),
        global_batch=whole("gbs"), tensor=whole("tp"), pipeline=whole("pp"), ring=whole("cp"),
        virtual_stages=whole("vp"), expert=1 if dense else whole("ep"),
        sequence_parallel=whole("tp") > 1, zero=3 if cell["fsdp"] not in ("", "0") else 1,
        flops=flops("products", "causal", "none"),
        measured=dict(tokens_per_s_per_gpu=int(cell["tokens_sec_gpu"]),
                      model_tflops_per_gpu=int(cell["model_tflop_sec_gpu"])))
    if mamba:
        case["left_out"] = MAMBA
    elif not dense:
        bridge_moe(case, r["model"], release, precision)
    elif kind == "LoRA":
        case["left_out"] = LORA
    replicas = gpus // (case["tensor"] * case["pipeline"] * case["ring"])
    if not mamba and case["global_batch"] % (replicas * case["micro_batch"]) != 0:
        case["left_out"] = "the source's batch does not divide over its own layout"
    if not dense and gpus // case["pipeline"] % case["expert"] != 0:
        case["left_out"] = "the printed experts are over more GPUs than a stage has"
    if "left_out" not in case:
        case["assumed"] = "that nothing is recomputed" + (
            ", and that samples fill their sequences" if kind == "SFT" else "")
    return case


def bridge(rows):
    cases = []
    for r in rows:
        two = any(re.fullmatch(r"\S+ \(.+\)", r[k]) for k in r
                  if k not in ("release", "kind", "model"))
        cases += [bridge_case(r, variant, two) for variant in range(2 if two else 1)]
    return "megatron-bridge", unique(cases), [DEEPSEEK_V3_MTP]


def mist(rows):
    shapes = {"1.3b": (24, 2048, 16, 5632), "2.7b": (32, 2560, 32, 6912),
              "7b": (32, 4096, 32, 11008), "13b": (40, 5120, 40, 13824)}
    models, cases = {}, []
    for r in rows:
        layers, hidden, heads, ffn = shapes[r["size"]]
        name = f"mist-{r['family']}-{r['size']}"
        models[name] = (gpt(name, layers, hidden, heads, int(r["vocab"]), 2048, tied=False,
                            biases=False) if r["family"] == "gpt" else
                        llama(name, layers, hidden, heads, ffn, int(r["vocab"]), 2048))
        stages = [[float(x) for x in s.strip("()").split()]
                  for s in r["stage_strategies"].split("|")]
        alike = [s[:6] for s in stages]
        assert all(s == alike[0] for s in alike) and not any(s[6] + s[7] + s[9] for s in stages)
        micro, data, tensor, weights, gradients, optimizer = (int(x) for x in alike[0])
        assert tensor == 1 and not weights and not gradients
        recomputed = [int(x) for x in r["gradient_ckpt_layers"].split("|")]
        flash = r["flash_attn"] == "True"
        peak = lambda key: str(max(int(x) for x in re.findall(r"(\d+) MB", r[key]))) + "MiB"
        case = dict(
            name=f"{r['family']} {r['size']}" + (" flash" if flash else ""), model=name,
            hardware="l4", gpus=int(r["nodes"]) * int(r["gpus_per_node"]), stack="mist",
            precision="fp16", sequence=int(r["seq_len"]), micro_batch=micro,
            global_batch=int(r["global_batch"]), data=data, pipeline=len(stages),
            stage_layers=[int(x) for x in r["layers_per_stage"].split("|")], zero=optimizer,
            recompute="full" if any(recomputed) else "none", flash_attention=flash,
            measured=dict(step_time_s=float(r["measured_iter_s"]),
                          peak_allocated=peak("peak_alloc_per_stage"),
                          peak_reserved=peak("peak_reserved_per_stage")))
        if any(recomputed):
            case["recompute_layers"] = recomputed
        if any(s[8] for s in stages):
            case["offload"] = {"optimizer": [s[8] for s in stages]}
        cases.append(case)
    return "mist-l4", cases, list(models.values())


def nemo(rows):
    cases = []
    for r in rows:
        h100 = "H100" in r["table"]
        case = dict(
            name=f"{'Llama-2-7B H100' if h100 else 'Llama-3-8B B200'} "
                 f"{length(int(r['seq_len']))}",
            model="llama-2-7b" if h100 else "llama-3.1-8b",
            hardware="dgx-h100" if h100 else "dgx-b200", gpus=int(r["num_gpus"]), stack="nemo",
            precision="fp8", sequence=int(r["seq_len"]), global_batch=int(r["global_batch"]),
            tensor=int(r["tp"]), pipeline=int(r["pp"]), ring=int(r["cp"]),
            sequence_parallel=int(r["tp"]) > 1, zero=1,
            flops=flops("products", "full", "none"),
            measured=dict(model_tflops_per_gpu=int(r["tflops_per_gpu_with_cp"])),
            note="micro-batch, interleaving and recomputation are not published")
        if r["layout_consistent"] != "True":
            case["left_out"] = "the printed layout is not that of the printed number of GPUs"
        cases.append(case)
    return "nemo-long-sequence", cases, ()


QWEN3_4B = dict(name="qwen3-4b-2507", layers=36, hidden=2560, heads=32, kv_heads=8, head_dim=128,
                ffn=9728, vocab=151936, max_positions=262144, norm="rmsnorm", activation="swiglu",
                positions="rope", norm_eps=1e-6, rope_theta=5000000, qk_norm=True,
                tied_embeddings=True)


def prime_rl(rows):
    models = {"Qwen3-0.6B": "qwen3-0.6b", "Qwen3-4B-Instruct-2507": QWEN3_4B["name"],
              "Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
              "Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b", "INTELLECT-3": "glm-4.5-air"}
    hardware = {"NVIDIA H100 80GB HBM3": "dgx-h100", "NVIDIA H200": "dgx-h200",
                "NVIDIA B200": "dgx-b200"}
    cases = []
    for r in rows:
        gpus, sequence, micro = (int(r[key]) for key in ("gpus", "seq", "micro_batches"))
        kernel = r["attn"].replace("flash_attention_", "flash")
        device = r["device"].removeprefix("NVIDIA ").split()[0]
        case = dict(
            name=f"{r['model']} {r['type']} {length(sequence)} on {gpus} "
                 f"{'A6000' if device == 'RTX' else device}, {kernel}"
                 + (f", LoRA {r['lora_rank']}" if r["lora_rank"] else "")
                 + (", inputs offloaded" if r["ac"] == "Offload" else ""),
            model=models.get(r["model"], r["model"]),
            hardware=hardware.get(r["device"], "rtx-a6000"), gpus=gpus, stack="prime-rl" + ("-sft" if r["type"] == "sft" else ""),
            precision="bf16", sequence=sequence, micro_batch=1, global_batch=micro * gpus, zero=3,
            recompute="full", attention=kernel, tiled_loss=r["type"] == "rl")
        if r["ac"] == "Offload":
            case["offload"] = {"checkpoints": [1]}
        if r["success"] == "True":
            case["measured"] = dict(step_time_s=float(r["step_s"]),
                                    peak_allocated=r["peak_gib"] + "GiB")
        else:
            case["measured"] = dict(out_of_memory=True)
        if r["success"] != "True" and "OutOfMemory" not in r["err"]:
            case["left_out"] = "it ended for a reason that is not said, with a kernel the card lacks"
        if r["lora_rank"]:
            case["left_out"] = LORA
        elif r["device"] not in hardware:
            case["left_out"] = "a card without rates"
        cases.append(case)
    return "prime-rl", unique(cases), [QWEN3_4B]


# Cut to four layers, one is dense: with none or three, states alone are 114 or 50 of the 104 GiB.
V3_CUT = latent("deepseek-v3-one-dense", 59, 7168, 18432, 129280, 1, V3_EXPERTS)


def simumax(rows):
    # Its 405B has 16 K,V heads, as in the first release (configs/models).
    largest = llama("llama-3-405b-kv16", 126, 16384, 128, 53248, 128256, 8192) | dict(kv_heads=16)
    models = {"llama3-70b": "llama-3.1-70b", "llama3-405b": largest["name"],
              "llama3-8b": "llama-3.1-8b", "deepseekv2": "deepseek-v2",
              "deepseekv3": V3_CUT["name"]}
    cases = []
    for r in rows:
        n = {key: int(r[key]) for key in ("layers", "seq_len", "tp", "cp", "ep", "pp", "dp",
                                          "micro_batch_size", "micro_batch_count")}
        case = dict(
            name=r["case"], model=models.get(r["model"], r["model"]), layers=n["layers"],
            hardware="dgx-b200", gpus=n["tp"] * n["cp"] * n["pp"] * n["dp"], stack="megatron-core",
            precision="bf16", sequence=n["seq_len"], micro_batch=n["micro_batch_size"],
            global_batch=n["micro_batch_size"] * n["micro_batch_count"] * n["dp"],
            tensor=n["tp"], pipeline=n["pp"], ulysses=n["cp"], expert=n["ep"],
            sequence_parallel=n["tp"] > 1, zero=1, recompute="none", overlap=False,
            measured=dict(step_time_s=round(float(r["real_ms_per_iter"]) / 1e3, 7),
                          peak_allocated=r["real_alloc_gib"] + "GiB",
                          peak_reserved=r["real_reserved_gib"] + "GiB"),
            peer=dict(name="SimuMax", step_time_s=round(float(r["pred_ms_per_iter"]) / 1e3, 7),
                      peak_memory=r["pred_alloc_gib"] + "GiB"))
        cases.append(case)
    for case in cases:
        case["note"] = ("sequence parallelism beside tensor parallelism and a sharded optimizer "
                        "are assumed")
    return "simumax-b200", cases, [largest, V3_CUT]


def torchtitan_flops(r):
    peak = H100_FP8 if "Float8" in r["technique"] else A100 if "A100" in r["hardware"] else H100
    # Until August 2024 its formula also counted the token table; the rows name the formula used.
    return flops("parameters" if r["table"] == "perf.md-2024" else "non-embedding", "full", "none",
                 peak)


LLAMA_LAYERS = {"llama3.1-8B": 32, "llama3-8B": 32, "llama3.1-70B": 80, "llama3-70B": 80,
                "llama3.1-405B": 126, "llama2-7B": 32, "llama2-13B": 40, "llama2-70B": 80}


def torchtitan_stack(r):
    """By technique; A100 rows and the plain ones of December 2024 are not compiled."""
    technique = r["technique"].lower()
    if "compile" not in technique and "float8" not in technique and r["table"] != "perf.md-405B":
        return "torchtitan-eager"
    if "float8" in technique and "selective" in r["activation_ckpt"] and r["date"] < "2025":
        return "torchtitan-2024"
    return ("torchtitan" + ("-rowwise" if "rowwise" in technique else "") +
            ("-async-tp" if "asynctp" in technique else ""))


def torchtitan(rows):
    models = {"llama3.1-8B": "llama-3.1-8b", "llama3-8B": "llama-3.1-8b",
              "llama3.1-70B": "llama-3.1-70b", "llama3-70B": "llama-3.1-70b",
              "llama3.1-405B": "llama-3.1-405b", "llama2-7B": "llama-2-7b",
              "llama2-13B": "llama-2-13b", "llama2-70B": "llama-2-70b"}
    cases = []
    for r in rows:
        n = {k: int(r[k]) for k in ("num_gpus", "fsdp", "tp", "pp", "cp", "seq_len",
                                    "local_batch", "global_batch")}
        hardware = ("grand-teton-h100" if "HBM2e" in r["hardware"] else
                    "dgx-h200" if r["hardware"].startswith("H200") else
                    "dgx-a100-80g" if r["hardware"] == "A100-80GB" else None)
        float8 = "float8" in r["technique"].lower()
        measured = dict(tokens_per_s_per_gpu=float(r["tps_per_gpu"]))
        if r["mfu_pct"]:
            measured["mfu"] = round(float(r["mfu_pct"]) / 100, 6)
        if r["memory_gib"]:
            measured["peak_reserved"] = r["memory_gib"] + "GiB"
        # A pipeline cuts the local batch into as many micro-batches as it has stages.
        note = f"{r['technique']}, {r['date']}"
        if n["pp"] > 1:
            note += "; as many micro-batches as stages, the default of the time, is assumed"
        interleaved = "interleaved" in r["technique"].lower()
        if interleaved:
            note += "; and two stages a rank"
        case = dict(
            name=f"{r['table']} {r['model']} {length(n['seq_len'])} on {n['num_gpus']}: "
                 f"{r['technique']}, recompute {r['activation_ckpt']}",
            model=models[r["model"]], hardware=hardware, gpus=n["num_gpus"], stack=torchtitan_stack(r),
            precision="fp8" if float8 else "bf16", sequence=n["seq_len"],
            micro_batch=n["local_batch"] // n["pp"], global_batch=n["global_batch"],
            tensor=n["tp"], pipeline=n["pp"], all_gather=n["cp"], data=n["fsdp"],
            sequence_parallel=n["tp"] > 1, zero=3, recompute=r["activation_ckpt"].split("(")[0]
            .split(" ")[0], flops=torchtitan_flops(r), measured=measured, note=note)
        if interleaved:
            case["virtual_stages"] = 2
        if r["activation_ckpt"] == "selective layer":  # every second one
            case |= dict(recompute="full", recompute_layers=[LLAMA_LAYERS[r["model"]] // 2])
        cases.append(case)
    return "torchtitan", unique(cases), ()


def vtrain(table, hardware, hardware_note):
    def convert(rows):
        models, cases = {}, []
        for r in rows:
            n = {k: int(v) for k, v in r.items()
                 if k not in ("iteration_time_ms", "parameters_billion")}
            name = f"gpt-h{n['hidden_size']}-l{n['num_layers']}"
            models[name] = gpt(name, n["num_layers"], n["hidden_size"], n["attention_heads"],
                               50257, n["sequence_length"])
            cases.append(dict(
                name=f"h{n['hidden_size']} l{n['num_layers']} b{n['global_batch']} "
                     f"m{n['micro_batch']} t{n['tensor_parallelism']} d{n['data_parallelism']} "
                     f"p{n['pipeline_parallelism']}",
                model=name, hardware=hardware, gpus=n["num_gpus"],
                stack="megatron-deepspeed", precision="fp16", sequence=n["sequence_length"],
                micro_batch=n["micro_batch"], global_batch=n["global_batch"],
                tensor=n["tensor_parallelism"], pipeline=n["pipeline_parallelism"], zero=0,
                recompute="full", flash_attention=False,
                measured=dict(step_time_s=round(float(r["iteration_time_ms"]) / 1e3, 9)),
                note=hardware_note))
        return table, unique(cases), sorted(models.values(), key=lambda m: m["name"])
    return convert


TRAINING = {
    "alst_max_seqlen_recipes": alst,
    "easycontext_ring_a100": easycontext,
    "fpdt_fig4_mfu_digitized": fpdt_figure,
    "fpdt_table_llama8b_8gpu": fpdt_table,
    "llmfoundry_a100_40gb": llm_foundry("llm-foundry-a100-40g", "dgx-a100-40g", "bf16", A100),
    "llmfoundry_a100_80gb": llm_foundry("llm-foundry-a100-80g", "dgx-a100-80g", "bf16", A100),
    "llmfoundry_h100_80gb_bf16": llm_foundry("llm-foundry-h100", "dgx-h100", "bf16", H100_FP8 / 2),
    "llmfoundry_h100_80gb_bf16_large_scale":
        llm_foundry("llm-foundry-h100-large", "dgx-h100", "bf16", H100_FP8 / 2),
    "llmfoundry_h100_80gb_fp8": llm_foundry("llm-foundry-h100-fp8", "dgx-h100", "fp8", H100_FP8),
    "megatron_2205_05198_fig1_memory_gib": seqsel_memory,
    "megatron_2205_05198_table5_a100": seqsel_times,
    "megatron_bridge_perf": bridge,
    "megatron_h100_weak_scaling": weak_scaling_h100,
    "megatron_ptdp_table1_a100": ptdp_times,
    "megatron_ptdp_table2_zero3_vs_ptd_a100": ptdp_zero,
    "mist_l4_measured": mist,
    "nemo_long_sequence_cp": nemo,
    "prime_rl_benchmarks": prime_rl,
    "simumax_b200_measured_vs_predicted": simumax,
    "torchtitan_measured": torchtitan,
    "vtrain_a100_single_node": vtrain("vtrain-single-node", "dgx-a100-80g", "40 or 80 GB is not stated"),
    "vtrain_a100_multi_node":
        vtrain("vtrain-multi-node", "hdr-a100-80g",
               "40 or 80 GB is not stated; 800 Gb/s between nodes, so four adapters a node"),
}

# Kernels and collectives, which are not training runs: kept unchanged.
OPERATIONS = ("echo_nccl_allreduce_a100", "simumax_op_efficiency")

# Not copied, because it is CC BY-SA: the hardware catalog cites single figures with their source.
ELSEWHERE = ("mamf_max_achievable_matmul",)


def operations(source_line, table, rows):
    source, remarks = source_of(source_line)
    number = lambda text: text if re.fullmatch(r"-?\d+(\.\d+)?", text) else scalar(text)
    lines = textwrap.wrap(without_csv_remarks(remarks), 98, initial_indent="# ",
                          subsequent_indent="# ", break_long_words=False)
    lines += [f"table: {table}", f"source: {json.dumps(source)}",
              f"columns: {flow(list(rows[0]))}", "rows:"]
    lines += ["  - [" + ", ".join(number(v) for v in row.values()) + "]" for row in rows]
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else "tests/published")
    (out / "ops").mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.csv")):
        lines = path.read_text().splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        if path.stem in ELSEWHERE:
            continue
        if path.stem in OPERATIONS:
            target, text = out / "ops" / f"{path.stem}.yaml", operations(
                comments[0], path.stem.replace("_", "-"), rows)
        elif path.stem in TRAINING:
            table, cases, models = TRAINING[path.stem](rows)
            target, text = out / f"{table.replace('-', '_')}.yaml", document(
                comments[0], table, cases, models)
        else:
            sys.exit(f"{path}: no converter for this table")
        target.write_text(text)
        print(f"{target}: {len(rows)} rows")


if __name__ == "__main__":
    main()

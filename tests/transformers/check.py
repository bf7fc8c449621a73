"""Holds training to transformers; tests/transformers/run says what it shows."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
warnings.filterwarnings("ignore")

import torch
import transformers
import truth
from architectures import REFUSED, TRAINED, changes, config_of
from safetensors.torch import load_file

WHOLE = os.environ.get("LONGSPAN_TEST_LENGTH") == "whole"
FEW = ["qwen3 tied", "gpt2"]
EVERY = 1 if WHOLE or len(sys.argv) > 1 else 2  # changes are tried: all, or every second

# Rounding of float32 in sums of some thousand terms. A setting that is read wrongly moves a loss by
# 1e-4 at least, or it is one of those that are counted as without effect.
TOLERANCE = 1e-5
EFFECT = 1e-4

# Ranks, windows in a step, and the words of `longspan plan`.
PLANS = {
    "whole": (1, 1, "--strategy baseline"),
    "chunks": (1, 1, "--strategy fpdt --chunk 16"),
    "memory": (1, 1, "--strategy auto --objective memory"),
    "batches": (1, 2, "--strategy fpdt --chunk 24 --microbatches 2"),
    "Ulysses": (2, 1, "--strategy fpdt --ulysses 2 --chunk 12 --zero 3"),
    "ring": (2, 1, "--strategy auto --ring 2 --chunk 12 --zero 0"),
    "tensor": (2, 1, "--strategy megatron-sp --tensor 2 --zero 0"),
    "data": (4, 4, "--strategy mst --data 4 --zero 3"),
    "Ulysses-data": (4, 2, "--strategy fpdt --ulysses 2 --data 2 --chunk 12 --zero 1"),
    "tensor-data": (4, 4, "--strategy megatron-sp --tensor 2 --data 2 --microbatches 2"),
}
# The same with experts on several ranks.
OF_EXPERTS = {
    "experts": (2, 1, "--strategy fpdt --ulysses 2 --expert 2 --chunk 12 --zero 3"),
    "ring-experts": (2, 1, "--strategy auto --ring 2 --expert 2 --chunk 12 --zero 0"),
    "experts-4": (4, 4, "--strategy mst --data 4 --expert 4 --zero 1"),
    "tensor-experts": (4, 2, "--strategy megatron-sp --tensor 2 --data 2 --expert 2 --zero 2"),
}
ALL_PLANS = {**PLANS, **OF_EXPERTS}


class Refused(Exception):
    pass


class Wrong(Exception):
    pass


def longspan(*words):
    result = subprocess.run([os.environ["LONGSPAN"], *words], capture_output=True, text=True)
    if result.returncode == 2:
        if result.stderr.count("\n") != 1 or not result.stderr.startswith("longspan: "):
            raise Wrong(f"refused in other than one line: {result.stderr}")
        raise Refused(result.stderr.strip())
    if result.returncode != 0:
        raise Wrong(f"status {result.returncode}: {result.stderr.strip()}")


def make_plan(folder, file, plan, *more):
    ranks, _, words = ALL_PLANS[plan]
    hardware = "cpu-example" if ranks == 1 else f"{ranks}xcpu-example"
    size = ["--model", str(folder), "--hw", hardware, "--seq", str(truth.SEQUENCE), *more]
    try:
        longspan("plan", *size, *words.split(), "-o", str(file))
    except Refused as why:
        if "whose layers differ" not in str(why):
            raise
        # Presets are of layers that are alike; the search takes their other words.
        words = re.sub(r"--strategy \S+", "--strategy auto", words)
        longspan("plan", *size, *words.split(), "-o", str(file))


def train(plan_file, folder, plan, *more):
    """The losses and gradient norms of a run."""
    record, tokens = plan_file.with_suffix(".json"), plan_file.with_suffix(".bin")
    truth.TOKENS.astype("uint16").tofile(tokens)
    ranks = ALL_PLANS[plan][0]
    longspan(
        *("run", str(plan_file), "--weights", str(folder), "--data", str(tokens), *more),
        *("--steps", str(truth.STEPS), "--warmup", str(truth.WARMUP), "--lr", str(truth.RATE)),
        *("--min-lr", str(truth.LEAST_RATE), "--weight-decay", str(truth.DECAY)),
        *("--clip", str(truth.CLIP), "--threads", "1", "-o", str(record), "--json"),
        *(["--local-ranks", str(ranks)] if ranks > 1 else []),
    )
    steps = json.loads(record.read_text())["steps"]
    return [s["loss"] for s in steps], [s["gradient_norm"] for s in steps]


def apart(ours, theirs):
    """The largest relative difference of two lists."""
    if len(ours) != len(theirs):
        raise Wrong(f"{len(ours)} steps, not {len(theirs)}")
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def hold(what, difference):
    if not difference <= TOLERANCE:
        raise Wrong(f"{what} off by {difference:.1e}")
    return difference


def moment_of(tensors, name):
    """That of a parameter of transformers, which has all experts in one, the files one by one."""
    if f"adam_m.{name}" in tensors:
        return tensors[f"adam_m.{name}"]
    name = f"adam_m.{name}"
    if "block_sparse_moe" in "".join(tensors):
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if name in tensors:
        return tensors[name]
    prefix, _, part = name.rpartition(".")
    up = {"gate_up_proj": (["gate_proj", "w1"], ["up_proj", "w3"])}
    parts = up.get(part, ([part, "w2"],))
    experts = []
    while any(key.startswith(f"{prefix}.{len(experts)}.") for key in tensors):
        own = f"{prefix}.{len(experts)}."
        found = [next(f"{own}{n}.weight" for n in p if f"{own}{n}.weight" in tensors) for p in parts]
        experts.append(torch.cat([tensors[key] for key in found]))
    return torch.stack(experts)


def check_checkpoint(checkpoint, folder, training, windows):
    """The moments, and the loss that transformers finds with the weights."""
    tensors = load_file(checkpoint)
    # A bias of k has no gradient but rounding errors, hence all tensors together.
    norm = sum(m.norm() ** 2 for m in training.moments.values()) ** 0.5
    for name, moment in training.moments.items():
        ours = moment_of(tensors, name)
        hold(f"the moment of {name}", ((ours - moment).norm() / norm).item())
    continued = checkpoint.with_suffix("")
    continued.mkdir(exist_ok=True)
    shutil.copy(folder / "config.json", continued)
    shutil.copy(checkpoint, continued / "model.safetensors")
    loss = truth.loss_after(truth.load(continued), windows)
    hold("the loss of the checkpoint", apart([loss], [training.loss_after]))


@dataclass
class Report:
    name: str
    plans: dict = field(default_factory=dict)  # by plan: a difference, or why it was refused
    keys: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)


def check_plans(report, config, work):
    folder = work / "model"
    truth.write_folder(folder, config)
    trainings = {}
    has_experts = any("num_experts_per_tok" in key for key in config)
    for plan, (_, windows, _) in (ALL_PLANS if has_experts else PLANS).items():
        if windows not in trainings:
            trainings[windows] = truth.train(folder, windows)
        training, file = trainings[windows], work / "plan.yaml"
        checkpoint = work / "checkpoint.safetensors"
        try:
            make_plan(folder, file, plan)
            losses, norms = train(file, folder, plan, "--checkpoint", str(checkpoint))
            report.plans[plan] = hold("a loss", apart(losses, training.losses))
            hold("a gradient norm", apart(norms, training.norms))
            check_checkpoint(checkpoint, folder, training, windows)
        except Refused as refusal:
            report.plans[plan] = "refused"
            if "heads" not in str(refusal):  # fewer than the ranks that would share them
                report.wrong.append(f"{report.name}, {plan}: {refusal}")
        except Wrong as error:
            report.plans[plan] = "WRONG"
            report.wrong.append(f"{report.name}, {plan}: {error}")


def check_keys(report, config, work):
    """Every change is tried with a plan of its own, and with the plan of the unchanged folder."""
    usual, changed = work / "usual.yaml", work / "changed.yaml"
    folder, plan = work / "model", "whole"
    truth.write_folder(folder, config)
    make_plan(folder, usual, plan)
    before = truth.train(folder, 1).losses
    for change in list(changes(config))[::EVERY]:
        shutil.rmtree(folder)
        try:
            truth.write_folder(folder, change.of(config), change.tensors)
            losses = truth.train(folder, 1).losses
        except Exception:  # whatever transformers throws: it trains no such model
            report.keys["no model"] += 1
            continue
        effect = apart(losses, before)
        for file in (changed, usual):
            try:
                if file == changed:
                    make_plan(folder, file, plan)
                hold("a loss", apart(train(file, folder, plan)[0], losses))
                verdict = "agree"
            except Refused:
                verdict = "refused"
            except Wrong as error:
                verdict = "WRONG"
                where = f"{report.name}, {change.name}, {file.stem} plan"
                report.wrong.append(f"{where}: {error}; transformers moved by {effect:.1e}")
            report.keys[file.stem, verdict] += 1
            report.keys[file.stem, verdict, "moved"] += effect > EFFECT
    for verdict in ("agree", "refused"):
        if report.keys["changed", verdict, "moved"] == 0:
            report.wrong.append(f"{report.name}: no change that matters: {verdict}")


def check_architecture(name):
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity(logging.CRITICAL)
    report = Report(name)
    kind, fields = TRAINED.get(name, (name, {}))
    config = config_of(kind, **fields)
    with tempfile.TemporaryDirectory(prefix="longspan-transformers.") as folder:
        work = Path(folder)
        if name in TRAINED:
            check_plans(report, config, work)
            check_keys(report, config, work)
            return report
        try:
            (work / "config.json").write_text(json.dumps(config))
            make_plan(work, work / "plan.yaml", "whole")
            longspan("run", str(work / "plan.yaml"))
            report.wrong.append(f"{name}: not refused")
        except Refused:
            pass
        except Wrong as error:
            report.wrong.append(f"{name}: {error}")
    return report


def print_table(title, columns, reports, cell):
    print(
        f"\n{title}\n{'':<18}"
        + "".join(f"{column:>{max(9, len(column) + 2)}}" for column in columns)
    )
    for report in reports:
        cells = [f"{cell(report, c):>{max(9, len(c) + 2)}}" for c in columns]
        print(f"{report.name:<18}" + "".join(cells))


def main():
    names = sys.argv[1:]
    known = [*TRAINED, *REFUSED]
    if names == ["--list"]:
        print("\n".join(known))
        return 0
    for name in names:
        if name not in known:
            print(f"no architecture {name}; --list shows them", file=sys.stderr)
            return 2
    with ProcessPoolExecutor() as pool:
        reports = list(pool.map(check_architecture, names or (known if WHOLE else FEW)))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    trained = [r for r in reports if r.name in TRAINED]

    def plan_cell(report, plan):
        value = report.plans.get(plan, "-")
        return value if isinstance(value, str) else f"{value:.0e}"

    def key_cell(plan):
        return lambda report, verdict: (
            f"{report.keys[plan, verdict]} ({report.keys[plan, verdict, 'moved']})"
        )

    verdicts = ["agree", "refused", "WRONG"]
    print_table("Plans: the largest relative difference of a loss", ALL_PLANS, trained, plan_cell)
    print_table(
        "Changes of a folder (of those, with an effect)", verdicts, trained, key_cell("changed")
    )
    print_table("... as weights of the usual plan", verdicts, trained, key_cell("usual"))
    print(
        f"\nchanges of which transformers makes no model: {sum(r.keys['no model'] for r in trained)}"
    )
    refused = [r.name for r in reports if r.name not in TRAINED and not r.wrong]
    if refused:
        print(f"\nrefused: {', '.join(refused)}")
    wrong = [line for report in reports for line in report.wrong]
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

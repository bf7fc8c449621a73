"""Holds adapters to peft; tests/transformers/run adapters says what it shows."""

import sys
import tempfile
from pathlib import Path

import check
import peft
import torch
import truth
from architectures import config_of

# Plans by which adapters run: a tensor group has none.
PLANS = [plan for plan in check.PLANS if "tensor" not in plan]
TARGETS = [
    ["q_proj", "v_proj"],
    ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    ["o_proj", "down_proj"],
]
RANK, ALPHA = 4, 12


def adapted(folder, targets):
    """The model with adapters that matter: peft's own begin with a sum of zero."""
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=targets, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(truth.load(folder), config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    return model.eval()


def check_plan(work, folder, plan, targets):
    model = adapted(folder, targets)
    begin, end = work / "begin", work / "end"
    model.save_pretrained(begin)
    windows = check.PLANS[plan][1]
    training = truth.train_model(model, windows)
    file = work / "plan.yaml"
    lora = ["--lora", str(RANK), "--lora-alpha", str(ALPHA), "--lora-targets", ",".join(targets)]
    check.make_plan(folder, file, plan, *lora)
    words = ["--adapters", str(begin), "--save-adapters", str(end)]
    losses, norms = check.train(file, folder, plan, *words)
    worst = check.hold("a loss", check.apart(losses, training.losses))
    check.hold("a gradient norm", check.apart(norms, training.norms))
    continued = peft.PeftModel.from_pretrained(truth.load(folder), end).eval()
    loss = truth.loss_after(continued, windows)
    check.hold("the loss with the adapters written", check.apart([loss], [training.loss_after]))
    return worst


def main():
    torch.set_num_threads(1)
    wrong = 0
    for kind in ("llama", "qwen3", "gemma3_text", "mixtral"):
        with tempfile.TemporaryDirectory(prefix="longspan-adapters.") as temporary:
            work = Path(temporary)
            folder = work / "model"
            truth.write_folder(folder, config_of(kind))
            for targets in TARGETS:
                if kind == "mixtral" and any(t in targets for t in ("up_proj", "down_proj")):
                    continue  # of experts
                for plan in PLANS:
                    label = f"{kind}, {plan}, {' '.join(targets)}"
                    try:
                        print(f"{label}: {check_plan(work, folder, plan, targets):.0e}")
                    except check.Refused as why:
                        print(f"{label}: refused: {why}")
                        wrong += "heads" not in str(why)
                    except check.Wrong as error:
                        print(f"WRONG {label}: {error}")
                        wrong += 1
    print(f"peft {peft.__version__}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Steps of training by PyTorch's pipeline runtime, in several processes over gloo on the CPU."""

import copy
import csv
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

SAMPLES_PER_MICROBATCH = 2
OWN = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


@dataclass
class Job:
    name: str
    path: str | None  # a file with exchanges; None: PyTorch's own class of that name
    stages: int
    microbatches: int
    # PyTorch divides gradients by microbatches in REDUCE_GRAD; without it they are sums.
    summed: bool = False


@dataclass
class Outcome:
    job: Job
    error: float  # largest relative error of loss and gradients against the whole model, over ranks
    executed: list  # by rank, the actions as they were executed


def layers_of(stages, features):
    """The whole model by stage, in double precision, the same in every process."""
    generator = torch.Generator().manual_seed(stages)
    layers = []
    for _ in range(stages):
        layer = torch.nn.Sequential(
            torch.nn.Linear(features, features),
            torch.nn.Tanh(),
            torch.nn.Linear(features, features),
        )
        layers.append(layer.double())
        for parameter in layer.parameters():
            parameter.data = (
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
            )
    return layers


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def relative(got, expected):
    if got is None or expected.abs().max() == 0:
        return float("inf")
    return ((got - expected).abs().max() / expected.abs().max()).item()


def worst(errors):
    return torch.tensor(errors).max().item()  # keeps NaN


def recorded(stage, executed):
    """`stage`, writing down what it computes."""
    forward, backward = stage.forward_one_chunk, stage.backward_one_chunk

    def note_forward(microbatch, *args, **kwargs):
        executed.append(f"{stage.stage_index}F{microbatch}")
        return forward(microbatch, *args, **kwargs)

    def note_backward(microbatch, *args, **kwargs):
        executed.append(f"{stage.stage_index}B{microbatch}")
        return backward(microbatch, *args, **kwargs)

    stage.forward_one_chunk, stage.backward_one_chunk = note_forward, note_backward
    return stage


def stages_of(path, rank):
    """Stages that the rank computes, in the order of their numbers."""
    with open(path, newline="") as file:
        row = [_Action.from_str(cell) for cell in list(csv.reader(file))[rank]]
    parts = [part for action in row for part in action.sub_actions or (action,)]
    return sorted({part.stage_index for part in parts if part.is_compute_op})


def run_job(job, rank, features):
    """Loss and gradients of one step on this rank against the model in one piece."""
    layers = layers_of(job.stages, features)
    whole = copy.deepcopy(layers)
    samples = SAMPLES_PER_MICROBATCH * job.microbatches
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(2, samples, features, generator=generator, dtype=torch.float64)
    loss = loss_of(torch.nn.Sequential(*whole)(inputs), targets)
    loss.backward()

    own = [rank] if job.path is None else stages_of(job.path, rank)
    stages = [PipelineStage(layers[s], s, job.stages, torch.device("cpu")) for s in own]
    executed = []
    if job.path is None:
        schedule = OWN[job.name](recorded(stages[0], executed), job.microbatches, loss_fn=loss_of)
    else:
        schedule = _PipelineScheduleRuntime(stages, job.microbatches, loss_fn=loss_of)
        schedule._load_csv(job.path, "compute_comms")
    losses = []
    first, last = 0 in own, job.stages - 1 in own
    schedule.step(
        *([inputs] if first else []),
        target=targets if last else None,
        losses=losses if last else None,
    )

    errors = [relative(torch.stack(losses).mean(), loss)] if last else []
    for stage in own:
        for got, expected in zip(layers[stage].parameters(), whole[stage].parameters()):
            scale = job.microbatches if job.summed else 1
            errors.append(relative(got.grad, scale * expected.grad))
    return worst(errors), executed


def work(rank, ranks, jobs, features, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{ranks}", rank=rank, world_size=ranks
    )
    results = []
    for job in jobs:
        results.append(run_job(job, rank, features))
        dist.barrier()
    torch.save(results, f"{folder}/results-{ranks}-{rank}.pt")
    dist.destroy_process_group()


def train(jobs, ranks, features, folder: Path):
    """One step of each job on `ranks` processes. Raises what a process has raised."""
    processes.spawn(work, args=(ranks, jobs, features, str(folder)), nprocs=ranks)
    by_rank = [torch.load(folder / f"results-{ranks}-{rank}.pt") for rank in range(ranks)]
    return [
        Outcome(job, worst([error for error, _ in results]), [executed for _, executed in results])
        for job, *results in zip(jobs, *by_rank)
    ]

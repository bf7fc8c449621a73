"""Holds schedules to torch.distributed.pipelining; tests/pytorch/run says what it shows."""

import filecmp
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import training
from program import Refused, cells, longspan_json, make, rewrite
from torch.distributed.pipelining import schedules as pytorch
from torch.distributed.pipelining.stage import PipelineStage

WHOLE = os.environ.get("LONGSPAN_TEST_LENGTH") == "whole"


def some(of):
    """Every second of a list's cases by default, all of them at full length."""
    return of if WHOLE else of[::2]


# PyTorch's classes with the family that claims to be the same list. Sizes: ranks, stages on each,
# microbatches; those that PyTorch refuses are passed over, and four at least must be left.
SINGLE = [(1, 1, 1), (1, 1, 3), (2, 1, 2), (3, 1, 7), (4, 1, 4), (4, 1, 9), (8, 1, 19)]
TWO = [
    (1, 2, 3),
    (2, 2, 4),
    (3, 2, 7),
    (4, 2, 8),
    (4, 2, 9),
    (4, 2, 5),
    (3, 2, 6),
    (8, 2, 16),
    (5, 2, 23),
]
MORE = TWO + [(2, 3, 6), (3, 3, 9), (4, 3, 12), (4, 3, 6), (3, 5, 10), (4, 4, 14)]
CLASSES = {
    "GPipe": ("gpipe", SINGLE),
    "1F1B": ("1f1b", SINGLE),
    "Interleaved1F1B": ("interleaved-1f1b", MORE),
    "LoopedBFS": ("bfs", MORE),
    "InterleavedZeroBubble": ("interleaved-zb", MORE),
    "ZBVZeroBubble": ("zb-v-static", TWO),
    "DualPipeV": ("dualpipe-v", TWO),
}

# Options that make PyTorch's lowering place receives, waits and gathering differently.
LOWERINGS = [
    {"defer_pp_recv": True},
    {"max_outstanding_sends": 4},
    {"defer_reduce_grad_wait": True, "max_active_stages": 2},
]

# Schedules that PyTorch's CSV cannot express: PyTorch must refuse the file, or the program not
# write it.
SLICES, WORDS, PLACES = (
    "slices",
    "words PyTorch has not",
    "stages on several ranks, or several copies",
)
BEYOND = {
    **dict.fromkeys(["terapipe", "seq1f1b", "seq1f1b-i", "slimpipe", "chunkflow", "sppo"], SLICES),
    **dict.fromkeys(["chronos-recomp", "po-h", "po-f"], WORDS),
    **dict.fromkeys(["1f1b-vocab-1", "1f1b-vocab-2", "v-half-vocab-1", "v-half-vocab-2"], WORDS),
    **dict.fromkeys(["dualpipe", "helixpipe", "sppo-msp"], PLACES),
}

FAMILY_SIZES = [(4, 8), (3, 7), (3, 9), (4, 13), (2, 4), (6, 12)]  # ranks, microbatches
TRAINED = [(4, 8), (3, 9)]  # the subset that is trained with
FEATURES = 6


def stand_ins(ranks, per_rank):
    """Stages that know their number only, as PyTorch's own visualiser makes them."""
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size = 0, ranks
    stage.num_stages = ranks * per_rank
    stage.submod = None
    return [stage] * per_rank


def runtime(ranks, per_rank, microbatches, **options):
    return pytorch._PipelineScheduleRuntime(stand_ins(ranks, per_rank), microbatches, **options)


def write_own(name, ranks, per_rank, microbatches, plain, lowered, **options):
    """PyTorch's schedule by PyTorch's code: computation only, and lowered to exchanges."""
    schedule_class = pytorch.get_schedule_class(name)
    stages = stand_ins(ranks, per_rank)
    own = runtime(ranks, per_rank, microbatches, **options)
    if issubclass(schedule_class, pytorch.PipelineScheduleSingle):
        order = schedule_class(stages[0], microbatches)._get_pipeline_order()
        if name == "1F1B":
            # Intended for display; the last rank's forwards are one too high, 1 to m.
            order[ranks - 1] = [
                (
                    a._replace(microbatch_index=a.microbatch_index - 1)
                    if a.computation_type == pytorch.FORWARD
                    else a
                )
                for a in order[ranks - 1]
            ]
        pytorch.PipelineScheduleMulti._dump_csv(SimpleNamespace(pipeline_order=order), plain)
        order = {rank: [a for a in row if a.is_compute_op] for rank, row in order.items()}
    else:
        schedule = schedule_class(stages, microbatches)
        schedule._dump_csv(plain, "compute_only")
        order = schedule.pipeline_order
    own._prepare_schedule_with_comms(order)
    own._dump_csv(lowered, "compute_comms")


def without_reductions(rows):
    """PyTorch's lists of schedules of one stage have them in plain files too."""
    return [[cell for cell in row if "REDUCE_GRAD" not in cell] for row in rows]


class Check:
    def __init__(self, folder):
        self.folder = folder
        self.failures = []
        self.counts = Counter()

    def hold(self, what, true, detail=""):
        self.counts[what] += 1
        if not true:
            self.failures.append(f"{what}: {detail}")

    def file(self, name):
        return str(self.folder / f"{name}.csv")

    def comes_back(self, path, where):
        again = self.file("again")
        rewrite(again, path)
        self.hold(
            "PyTorch's files come back byte for byte",
            filecmp.cmp(path, again, shallow=False),
            where,
        )

    def own_schedules(self):
        plain, lowered, ours = self.file("plain"), self.file("lowered"), self.file("ours")
        for name, (family, sizes) in CLASSES.items():
            made = 0
            for ranks, per_rank, microbatches in some(sizes):
                where = (
                    f"{name} of {ranks} ranks, {per_rank} stages each, {microbatches} microbatches"
                )
                try:
                    write_own(name, ranks, per_rank, microbatches, plain, lowered)
                except ValueError:
                    continue  # a size that this class does not take
                made += 1
                self.comes_back(plain, where)
                self.comes_back(lowered, where + ", lowered")

                own_list, own_lowering = without_reductions(cells(plain)), cells(lowered)
                words = [] if per_rank == 1 else ["--virtual", per_rank]
                make(ours, family, ranks, microbatches, *words)
                self.hold(
                    "generators that claim PyTorch's list make it", cells(ours) == own_list, where
                )
                make(ours, family, ranks, microbatches, *words, "--gathering")
                self.hold(
                    "lowering is PyTorch's, action for action", cells(ours) == own_lowering, where
                )

                for options in some(LOWERINGS):
                    try:
                        write_own(name, ranks, per_rank, microbatches, plain, lowered, **options)
                    except ValueError:
                        continue  # too few sends at a time, or stages, for this schedule
                    self.comes_back(lowered, f"{where}, lowered with {options}")
            self.hold(
                "PyTorch makes schedules of its classes", made >= 4, f"{name}: only {made} sizes"
            )

    def load(self, path, ranks, per_rank, microbatches, format):
        """PyTorch's runtime with the file; given a limit of sends it looks for circular waits."""
        made = runtime(ranks, per_rank, microbatches, max_outstanding_sends=1 << 20)
        made._load_csv(path, format)
        return made

    def families(self):
        """Has PyTorch load every family; returns what to train with, by number of ranks."""
        listed = longspan_json("schedule", "list")
        lists = listed["schedules"] + [
            f for f in listed["optimised"] if f["name"] in ("optpipe", "adaptis")
        ]
        jobs = {ranks: [] for ranks, _ in TRAINED}
        for family in lists:
            name = family["name"]
            least, most = family["least_virtual_stages"], family["most_virtual_stages"]
            virtuals = [least, least + 1] if most is None else [least]
            made = Counter()
            for ranks, microbatches in some(FAMILY_SIZES):
                if name in ("optpipe", "adaptis") and ranks > 2:
                    continue  # the solver is slow, and its lists are like others
                for per_rank in virtuals:
                    made[self.family(family, ranks, per_rank, microbatches, jobs)] += 1
            expected = BEYOND.get(name)
            if expected == PLACES:
                outcome = "not written"
            else:
                outcome = "refused" if expected else "loaded"
            good = made[outcome] > 0 and set(made) <= {"not of this size", outcome}
            self.hold(
                "PyTorch loads the families it has words for, and refuses the others",
                good,
                f"{name}: {dict(made)}",
            )
            print(
                f"  {name:<18}{'  '.join(f'{n} {what}' for what, n in made.items())}"
                f"{f' ({expected})' if expected else ''}",
                flush=True,
            )
        return jobs

    def family(self, family, ranks, per_rank, microbatches, jobs):
        """One size of one family; how far it came."""
        name = family["name"]
        where = f"{name} of {ranks} ranks, {per_rank} stages each, {microbatches} microbatches"
        words = [] if family["most_virtual_stages"] == 1 else ["--virtual", per_rank]
        if family["sliced"]:
            words += ["--slices", max(ranks, 2)]
        stem = f"{name}-{ranks}-{per_rank}-{microbatches}"
        plain, exchanges, lowered = (
            self.file(f"{stem}-{kind}") for kind in ("plain", "comms", "all")
        )
        try:
            make(plain, name, ranks, microbatches, *words)
        except Refused as refusal:
            beyond_csv = "a CSV " in str(refusal)
            return "not written" if beyond_csv else "not of this size"
        make(exchanges, name, ranks, microbatches, *words, "--exchanges")
        make(lowered, name, ranks, microbatches, *words, "--gathering")
        files = [(plain, "compute_only"), (exchanges, "compute_comms"), (lowered, "compute_comms")]
        loaded = []
        for path, format in files:
            try:
                loaded.append(self.load(path, ranks, per_rank, microbatches, format))
            except RuntimeError as refusal:
                if "Invalid action string" not in str(refusal):
                    raise
        if len(loaded) < len(files):
            return "refused" if not loaded else "refused in part"
        own = [
            [str(a) for a in loaded[0].pipeline_order_with_comms[rank]] for rank in range(ranks)
        ]
        self.hold("lowering is PyTorch's, action for action", own == cells(lowered), where)
        if (ranks, microbatches) in TRAINED:
            job = training.Job(stem, lowered, ranks * per_rank, microbatches)
            jobs[ranks].append(job)
            if WHOLE or ranks == 3:
                jobs[ranks].append(replace(job, path=exchanges, summed=True))
        return "loaded"

    def trained(self, jobs):
        for ranks, microbatches in TRAINED:
            # PyTorch runs these two by loops of its own, not by a list of actions.
            own = [training.Job(name, None, ranks, microbatches) for name in training.OWN]
            for outcome in training.train(jobs[ranks] + own, ranks, FEATURES, self.folder):
                where = f"{outcome.job.name} on {ranks} processes"
                self.hold(
                    "training with them gives loss and gradients of the model in one piece",
                    outcome.error < 1e-12,
                    f"{where}: {outcome.error}",
                )
                if outcome.job.path is None:
                    ours = self.file("ours")
                    make(ours, CLASSES[outcome.job.name][0], ranks, microbatches)
                    self.hold(
                        "PyTorch's loops execute our lists", outcome.executed == cells(ours), where
                    )


def main():
    with tempfile.TemporaryDirectory(prefix="longspan-pytorch.") as folder:
        check = Check(Path(folder))
        print("Schedules that PyTorch makes of its own ...", flush=True)
        check.own_schedules()
        print("Files of every family, loaded by PyTorch:", flush=True)
        jobs = check.families()
        print("Training with PyTorch's runtime ...", flush=True)
        check.trained(jobs)
    for what, count in check.counts.items():
        print(f"{count:5} {what}")
    for failure in check.failures:
        print(f"FAILED {failure}")
    return 1 if check.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())

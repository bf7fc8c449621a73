"""Checks the machine code of the CUDA kernels: python3 check.py VENV OBJECT...

Kernels that work on packs (engine/cuda/packs.h) have an inner loop that moves 16 bytes an access. It
is found as the shortest backward branch around such accesses. Its length, over the elements of its
packs, is the number of instructions per element.
"""

import glob
import os
import re
import subprocess
import sys

PACK = 8  # elements: kPack

# Per architecture: a GPU, its memory's bytes per second, and the instructions of single threads that
# it issues per second: multiprocessors x 128 x boost clock. From NVIDIA's data sheets.
GPUS = {
    "sm_80": ("A100", 2.04e12, 108 * 128 * 1.41e9),
    "sm_90a": ("H200", 4.8e12, 132 * 128 * 1.83e9),
    "sm_100": ("B200", 8.0e12, 148 * 128 * 1.85e9),
}
LEAST_SHARE = 0.75

# Kernels in bfloat16: a pattern of the name, the bytes per element that each loop reads and writes,
# and its 16-byte accesses per pack. Several loops of a kernel are its passes over a row, in the
# order of their addresses; alternatives, such as with and without a sum, have the same figures.
KERNELS = [
    ("activate<bfloat16>", [(4, 2)]),
    ("activate_backward<bfloat16>", [(6, 3)]),
    ("activate_gated<Silu, bfloat16>", [(6, 3)]),
    ("activate_gated<Gelu, bfloat16>", [(6, 3)]),
    ("activate_gated<ClampedSilu, bfloat16>", [(6, 3)]),
    ("activate_gated_backward<Silu, bfloat16>", [(10, 5)]),
    ("activate_gated_backward<Gelu, bfloat16>", [(10, 5)]),
    ("activate_gated_backward<ClampedSilu, bfloat16>", [(10, 5)]),
    ("merge_partial", [(12, 6)]),
    ("accumulate", [(10, 5)]),
    ("add_matrices<bfloat16>", [(4, 3)]),  # a bias stays in the cache
    ("copy_rows<bfloat16, bfloat16>", [(4, 2)]),
    ("copy_rows<bfloat16, float>", [(6, 3)]),
    ("copy_rows<float, bfloat16>", [(6, 3)]),
    ("embed_forward<bfloat16>", [(4, 2)]),
    ("adamw<float, float>", [(30, 15)]),
    ("adamw<float, bfloat16>", [(22, 11)]),
    ("adamw<bfloat16, float>", [(26, 13)]),
    ("adamw<bfloat16, bfloat16>", [(18, 9)]),
    ("cross_entropy<bfloat16>", [(2, 1), (4, 2)]),
    ("head_products<bfloat16>", [(4, 2)]),
    ("output_from_delta", [(2, 1), (4, 2)]),
]
# Rows that are held in registers have no inner loop: they must have such accesses.
HELD = ["norm_forward<bfloat16>", "norm_backward<bfloat16>", "head_norm_forward<bfloat16>",
        "head_norm_backward<bfloat16>"]
# Kernels whose loops may store to local memory: plain attention, which only checks the library's, the
# double sine of an angle, which has an array for angles above 1e5, and the choice of a token's experts,
# which has an array of its groups' scores.
LOCAL = re.compile(r"::(forward|backward_queries|backward_keys|rotate|choose_experts)<")


def run(venv, *command):
    paths = [os.path.dirname(p) for p in glob.glob(f"{venv}/lib/python*/site-packages/nvidia/**/*", recursive=True)
             if os.path.basename(p) in ("cuobjdump", "nvdisasm")]
    env = dict(os.environ, PATH=os.pathsep.join(paths + [os.environ["PATH"]]))
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        sys.exit(f"machine_code: {command[0]}: {done.stderr.strip()}")
    return done.stdout


def architectures(venv, path):
    return sorted(set(re.findall(r"\.(sm_\d+a?)\.cubin", run(venv, "cuobjdump", "-lelf", path))))


def functions(venv, path, arch):
    """Returns the instructions of every function, by mangled name: (address, text)."""
    all_of_them, own = {}, None
    for line in run(venv, "cuobjdump", "-sass", "-arch", arch, path).split("\n"):
        if match := re.match(r"\s*Function : (\S+)", line):
            own = all_of_them.setdefault(match.group(1), [])
        elif (match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", line)) and own is not None:
            own.append((int(match.group(1), 16), match.group(2)))
    return all_of_them


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split("\n")))


def is_wide(text):
    return re.search(r"\b(LDG|STG)\S*\.128", text) is not None


def loops_of(instructions):
    """Returns the first and the last address of every loop: a branch back, and its target."""
    for address, text in instructions:
        match = re.search(r"\bBRA\S*\s+(?:!?U?P\d+,\s*)?0x([0-9a-f]+)", text)
        if match and int(match.group(1), 16) < address:
            yield int(match.group(1), 16), address


def wide_loops(instructions):
    """Returns the innermost loops that move 16 bytes an access: (instructions, accesses)."""
    loops = []
    for begin, end in loops_of(instructions):
        body = [text for address, text in instructions if begin <= address <= end]
        if any(is_wide(text) for text in body):
            loops.append((begin, end, len(body), sum(is_wide(text) for text in body)))
    return [(length, wide) for begin, end, length, wide in sorted(loops)
            if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e, _, _ in loops)]


def stores_locally(instructions):
    """Whether a loop stores to local memory: spilled registers, or an array."""
    loops = list(loops_of(instructions))
    return any(re.search(r"\bSTL\b", text) and any(b <= address <= e for b, e in loops)
               for address, text in instructions)


def kernel_of(name):
    """Returns the short name of a kernel from its demangled name: fn, or fn<types>."""
    name = name.replace("longspan::", "").replace("cuda::", "").replace("(anonymous namespace)::", "")
    match = re.search(r"run_(?:packs<8, |warps<|teams<|each<)(?:void )?(\w+(?:<[\w, ]+>)?)\(", name)
    return match.group(1) if match else ""


def main():
    venv, objects = sys.argv[1], sys.argv[2:]
    faults, rows, found = [], {}, {}
    for path in objects:
        for arch in architectures(venv, path):
            code = functions(venv, path, arch)
            names = demangled(list(code))
            for mangled, instructions in code.items():
                name = names[mangled]
                if stores_locally(instructions) and not LOCAL.search(name):
                    faults.append(f"{arch}: a loop of {kernel_of(name) or name} stores to local memory")
                kernel = kernel_of(name)
                if kernel in HELD:
                    found.setdefault((arch, kernel), []).extend(t for _, t in instructions if is_wide(t))
                for pattern, passes in KERNELS:
                    if kernel == pattern and (loops := wide_loops(instructions)):
                        rows.setdefault(pattern, {}).setdefault(arch, []).append((loops, passes))

    archs = sorted({arch for of in rows.values() for arch in of}, key=list(GPUS).index)
    print("instructions per element, and the share of the memory's bandwidth that they allow:")
    print(f"{'kernel':32}" + "".join(f"{GPUS[a][0]:>22}" for a in archs))
    for pattern, passes in KERNELS:
        line = f"{pattern:32}"
        for arch in archs:
            _, bandwidth, rate = GPUS[arch]
            variants = rows.get(pattern, {}).get(arch, [])
            if not variants:
                faults.append(f"{arch}: {pattern} has no loop that moves 16 bytes an access")
                line += f"{'-':>22}"
                continue
            per_element, memory, total = [], 0.0, 0.0
            loops = variants[0][0]
            # One pass may have several loops, as alternatives: the slowest counts.
            groups = [loops] if len(passes) == 1 else [[loop] for loop in loops]
            if len(groups) != len(passes):
                faults.append(f"{arch}: {pattern} has {len(loops)} loops, expected {len(passes)}")
            for group, (size, accesses) in zip(groups, passes):
                slowest = max(length / (PACK * max(1, wide / accesses)) for length, wide in group)
                per_element.append(slowest)
                memory += size / bandwidth
                total += max(size / bandwidth, slowest / rate)
            share = memory / total
            if share < LEAST_SHARE:
                faults.append(f"{arch}: {pattern} allows {100 * share:.0f} % of the bandwidth, "
                              f"expected {100 * LEAST_SHARE:.0f} %")
            line += f"{' + '.join(f'{x:.1f}' for x in per_element):>14}{100 * share:>6.0f} %"
        print(line)
    for kernel in HELD:
        for arch in archs:
            if not found.get((arch, kernel)):
                faults.append(f"{arch}: {kernel} has no access of 16 bytes")
    for fault in sorted(set(faults)):
        print(f"machine_code: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What the pages say is what happens: README.md, HACKING.md, CONTRIBUTING.md and docs/*.md.

  * Every command of a fenced ```sh or ```console block that begins with `longspan` runs and ends
    with status 0, unless a table below says otherwise. Commands of a page run in order, in one
    empty folder that has examples/, tests/published and tests/users, with a stand-in for the machine's profile.
  * In a ```console block, what stands below "$ longspan ..." is what it prints. A last line "..."
    stands for all lines that follow.
  * Relative links and their anchors resolve, and so do paths of this repository in `code`.
  * Tests named as `ctest -R NAME` exist, and so do the flags that docs/cli.md names.
  * No line is longer than 118 columns.
  * The tables of docs/results.md are those of the files in tests/gpu/results.

Usage: LONGSPAN=build/dev/cli/longspan tests/docs/docs_test.py [--list | --update] [--no-solver]

--list prints every command and whether it is run; --update writes what commands print now into
the pages. Exit status: 0 all holds; 1 something does not; 2 it could not run.
"""

import argparse
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 118
SECONDS = 60  # of a command; those that take long are excepted

# Commands that are not run: page, how the command begins, why.
EXCEPTIONS = [
    ("docs/cli.md", "longspan plan --model llama-3.1-70b --hw 8x8xh100-80g", "long: 4 to 15 s"),
    ("docs/cli.md", "longspan plan --model llama-3.1-70b --hw 128x8xh100-80g", "long: 30 to 60 s"),
    ("docs/cli.md", "longspan plan --model llama-3.1-8b --hw 8xh100-80g --seq 64K,256K,1M",
     "long: 5 to 15 s"),
    ("docs/cli.md", "longspan validate tests/published", "long: 15 to 30 s; e2e_validate_test"),
    ("docs/gpu.md", "longspan profile", "needs a GPU"),
    ("docs/gpu.md", "longspan plan --model llama-3.1-8b --hw local", "needs a profile of a GPU"),
    ("docs/gpu.md", "longspan run", "needs a GPU"),
    ("docs/gpu.md", "longspan compare", "needs a run on a GPU"),
    ("docs/schedules.md", "longspan plan --model llama-3.1-70b --hw 32x8xh100-80g",
     "long: 5 to 10 s"),
    ("docs/schedules.md", "longspan schedule optpipe", "long: 10 to 30 s; e2e_solver_test"),
    ("docs/validation.md", "longspan validate tests/published",
     "long: 15 to 30 s; e2e_validate_test"),
]
# Commands that are excepted only if they match entirely, not if they just begin so.
EXACT = {"longspan validate tests/published"}

# Commands that may exit with a status other than 0: page, how the command begins, statuses, why.
STATUSES = [
    ("README.md", "longspan check", (1,), "the example runs out of memory"),
    ("docs/cli.md", "longspan check", (1,), "the example runs out of memory"),
    ("docs/users.md", "longspan check", (0, 1), "some of the runs are out of memory"),
    ("docs/cli.md", "longspan compare", (0, 1), "the machine is not the one of the stand-in"),
]

NEEDS_SOLVER = ("longspan schedule optpipe", "longspan schedule adaptis", "longspan assign")

# The profile that `--hw local` reads. Plans of it run here, but take another time than predicted.
PROFILE = "name: local\nlike: cpu-example-host\ndevice: cpu-example\n"

# Flags in docs/cli.md that are not Longspan's.
FOREIGN_FLAGS = {"--oversubscribe", "--allow-run-as-root", "--bind-to"}

VERBS = ["check", "export", "max-seq", "plan", "explain", "simulate", "run", "compare", "validate", "profile",
         "schedule show", "schedule compare", "schedule measured", "assign", "models list", "models show", "hw list", "hw show", "hw import"]


class Command:
    def __init__(self, page, line, text, output=None, output_at=None):
        self.page, self.line, self.text = page, line, text
        self.output = output        # lines the page prints below it, or None
        self.output_at = output_at  # first and last line of these, as a slice of the page

    def place(self):
        return f"{self.page}:{self.line + 1}: {self.text}"


def pages():
    names = ["README.md", "HACKING.md", "CONTRIBUTING.md"]
    return names + sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("**/*.md"))


def blocks(lines):
    """(language, first line, end) of every fenced block."""
    start = None
    for i, line in enumerate(lines):
        fence = re.match(r"\s*```(\w*)\s*$", line)
        if not fence:
            continue
        if start is None:
            start = (fence.group(1), i + 1)
        else:
            yield (*start, i)
            start = None


def normalized(text):
    """Without a comment, the build's folder and more than one space between words."""
    text = re.sub(r"\s+#\s.*$", "", text)
    return " ".join(text.replace("build/release/cli/longspan", "longspan").split())


def commands_of(page, lines):
    for language, first, end in blocks(lines):
        if language not in ("sh", "console"):
            continue
        i = first
        while i < end:
            at = i
            line = lines[i]
            i += 1
            if language == "console":
                if not line.startswith("$ "):
                    continue
                line = line[2:]
            while line.endswith("\\") and i < end:
                line = line[:-1] + " " + lines[i]
                i += 1
            text = normalized(line)
            if not text.startswith("longspan "):
                continue
            if language == "sh":
                yield Command(page, at, text)
                continue
            below = i
            while i < end and not lines[i].startswith("$ "):
                i += 1
            yield Command(page, at, text, lines[below:i], (below, i))


def begins(command, page, start):
    if command.page != page:
        return False
    return command.text == start if start in EXACT else command.text.startswith(start)


class Checks:
    def __init__(self, binary, solver):
        self.binary, self.solver = binary, solver
        self.failures, self.seen = [], set()

    def fail(self, text):
        self.failures.append(text)
        print(f"FAILED {text}", flush=True)

    def excepted(self, command):
        if not self.solver and command.text.startswith(NEEDS_SOLVER):
            return "needs the solver"
        for page, start, why in EXCEPTIONS:
            if begins(command, page, start):
                return why
        return None

    def statuses(self, command):
        for page, start, allowed, _ in STATUSES:
            if begins(command, page, start):
                return allowed
        return (0,)

    def run(self, command, folder):
        environment = dict(os.environ, NO_COLOR="1", TERM="dumb",
                           LONGSPAN_LOCAL_PROFILE=str(folder / "local-profile.yaml"))
        words = [self.binary]
        for word in shlex.split(command.text)[1:]:
            found = sorted(glob.glob(word, root_dir=folder)) if "*" in word else []
            words += found or [word]
        try:
            done = subprocess.run(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            self.fail(f"{command.place()}\n  takes more than {SECONDS} s")
            return None
        if done.returncode not in self.statuses(command):
            self.fail(f"{command.place()}\n  status {done.returncode}: {done.stderr.strip()}")
            return None
        return done.stdout.rstrip("\n").split("\n")

    def compare(self, command, printed):
        wanted = [line.rstrip() for line in command.output]
        got = [line.rstrip() for line in printed]
        if wanted and wanted[-1] == "...":
            wanted = wanted[:-1]
            got = got[:len(wanted)]
        if wanted == got:
            return
        for i in range(max(len(wanted), len(got))):
            page = wanted[i] if i < len(wanted) else "(no more lines)"
            now = got[i] if i < len(got) else "(no more lines)"
            if page != now:
                self.fail(f"{command.place()}\n  line {i + 1} of its output\n  page: {page}\n"
                          f"  now:  {now}")
                return

    def commands(self, all_commands, update):
        for page in dict.fromkeys(c.page for c in all_commands):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                shutil.copytree(ROOT / "examples", folder / "examples")
                shutil.copytree(ROOT / "tests/published", folder / "tests/published")
                shutil.copytree(ROOT / "tests/users", folder / "tests/users")
                (folder / "local-profile.yaml").write_text(PROFILE)
                changes = []
                for command in (c for c in all_commands if c.page == page):
                    if self.excepted(command) or self.repeated(command):
                        continue
                    begun = time.monotonic()
                    printed = self.run(command, folder)
                    print(f"{time.monotonic() - begun:6.2f} s  {command.place()}", flush=True)
                    if printed is None or command.output is None:
                        continue
                    if update:
                        changes.append((command, printed))
                    else:
                        self.compare(command, printed)
                if changes:
                    rewrite(page, changes)

    def repeated(self, command):
        """Whether the same was run before, of commands that neither write nor read files here."""
        if command.output is not None or re.search(r"\.(yaml|json|csv|svg)\b", command.text):
            return False
        repeated = command.text in self.seen
        self.seen.add(command.text)
        return repeated

    def exceptions(self, all_commands):
        for page, start, *_ in EXCEPTIONS + STATUSES:
            if not any(begins(c, page, start) for c in all_commands):
                self.fail(f"{page}: no command begins with \"{start}\": strike it from the lists "
                          "of tests/docs/docs_test.py")

    def links(self, page, lines):
        in_block = {i for _, first, end in blocks(lines) for i in range(first, end)}
        for i, line in enumerate(lines):
            if i in in_block:
                continue
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                file = (ROOT / page).parent / path if path else ROOT / page
                if not file.exists():
                    self.fail(f"{page}:{i + 1}: no such file: {target}")
                elif anchor and anchor not in anchors(file):
                    self.fail(f"{page}:{i + 1}: no such heading: {target}")

    def paths(self, page, lines):
        tops = "base|models|hwprofiles|planner|engine|cli|tests|examples|scripts|cmake|docs|notebooks"
        in_block = {i for _, first, end in blocks(lines) for i in range(first, end)}
        for i, line in enumerate(lines):
            if i in in_block:
                continue
            for path in re.findall(rf"`((?:{tops})/[\w./*{{}},-]*)`", line):
                for name in alternatives(path):
                    if not glob.glob(str(ROOT / name)):
                        self.fail(f"{page}:{i + 1}: no such path: {name}")

    def width(self, page, lines):
        for i, line in enumerate(lines):
            # This page quotes whole sentences in a table.
            if page == "docs/wording.md" and line.startswith("|"):
                continue
            if len(line) > COLUMNS:
                self.fail(f"{page}:{i + 1}: {len(line)} columns, more than {COLUMNS}")

    def ctest_names(self, page, lines, names):
        for found in re.findall(r"`ctest [^`]*-R '?([^'`\s]+)'?", " ".join(lines)):
            if found == "NAME":
                continue
            pattern = found.replace("\\|", "|")
            if not any(re.search(pattern, name) for name in names):
                self.fail(f"{page}: no test matches: ctest -R {found}")

    def results(self, page, folder):
        """The page's tables are those of the results files."""
        files = sorted(glob.glob(str(ROOT / folder / "*.json")))
        done = subprocess.run([ROOT / "tests/gpu/tables", "--check", ROOT / page] + files,
                              capture_output=True, text=True)
        if done.returncode != 0:
            self.fail(f"{page}: {done.stdout or done.stderr}")

    def flags(self, page, lines):
        helps = ""
        for verb in VERBS:
            helps += subprocess.run([self.binary, *verb.split(), "--help"], capture_output=True,
                                    text=True, check=False).stdout
        known = set(re.findall(r"--[a-z][a-z-]*", helps)) | FOREIGN_FLAGS
        for i, line in enumerate(lines):
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line):
                if flag not in known:
                    self.fail(f"{page}:{i + 1}: no verb has {flag}")


def alternatives(path):
    found = re.search(r"\{([^}]*)\}", path)
    if not found:
        return [path]
    return [path[:found.start()] + word + path[found.end():] for word in found.group(1).split(",")]


def anchors(file):
    """As GitHub makes them of headings."""
    result = set()
    for line in file.read_text(encoding="utf-8").split("\n"):
        heading = re.match(r"#+ +(.*)", line)
        if heading:
            text = re.sub(r"[^\w\- ]", "", heading.group(1).lower())
            result.add(text.replace(" ", "-"))
    return result


def test_names():
    names = []
    for file in (ROOT / "tests").glob("**/CMakeLists.txt"):
        names += re.findall(r"(?:longspan_test\(|add_test\(NAME )([\w-]+)", file.read_text())
    return names


def rewrite(page, changes):
    path = ROOT / page
    lines = path.read_text(encoding="utf-8").split("\n")
    for command, printed in reversed(changes):
        first, end = command.output_at
        if command.output and command.output[-1] == "...":
            printed = printed[:len(command.output) - 1] + ["..."]
        lines[first:end] = [line.rstrip() for line in printed]
    path.write_text("\n".join(lines), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--list", action="store_true", help="print the commands, run none")
    parser.add_argument("--update", action="store_true", help="write what is printed into the pages")
    parser.add_argument("--no-solver", action="store_true", help="the build has no solver")
    arguments = parser.parse_args()
    binary = os.environ.get("LONGSPAN", "")
    if not arguments.list and not os.access(binary, os.X_OK):
        print("docs_test: set LONGSPAN to the program", file=sys.stderr)
        return 2
    checks = Checks(os.path.abspath(binary), not arguments.no_solver)

    texts = {page: (ROOT / page).read_text(encoding="utf-8").split("\n") for page in pages()}
    found = [c for page, lines in texts.items() for c in commands_of(page, lines)]
    if arguments.list:
        for command in found:
            why = checks.excepted(command)
            print(f"{'not run (' + why + ')' if why else 'run'}: {command.place()}")
        return 0

    names = test_names()
    for page, lines in texts.items():
        checks.links(page, lines)
        checks.paths(page, lines)
        checks.width(page, lines)
        checks.ctest_names(page, lines, names)
    checks.flags("docs/cli.md", texts["docs/cli.md"])
    checks.results("docs/results.md", "tests/gpu/results")
    checks.exceptions(found)
    checks.commands(found, arguments.update)
    print(f"{len(found)} commands in {len(texts)} pages, {len(checks.failures)} failures")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Finds retired words and patterns in code, documents and the text that users see.

Usage: scripts/words.py [--count] [PATH...]

docs/glossary.md says which words the project uses; this list holds the ones that it does not use any more, and turns
of phrase that have to be read twice. Looks at all tracked text files, or at those below PATH. --count prints the
number of findings for each rule. Exit status: 0 nothing found; 1 findings.
"""

import argparse
import fnmatch
import re
import subprocess
import sys

# Files that quote retired words or are not the project's own text.
SKIPPED = ["docs/glossary.md", "docs/wording.md", "scripts/words.py", "tests/published/*", "tests/users/*", "scripts/convert_published.py", "examples/*",
           "tests/search/*.yaml", "LICENSE", "*.svg", "*.ipynb", "*.csv", "*.safetensors", "*.bin", "*.json"]
CODE = ["*.h", "*.cpp", "*.cu"]

# (pattern, what to say, files where it is allowed, only in these files)
RULES = [
    (r"(?<!--)\bmicro[- ]batch(es)?\b", "microbatch", ["tests/search/question.cpp", "cli/question_flags.cpp", "cli/plan.cpp", "tests/e2e/*", "frameworks/*", "docs/users.md",
                                                "tests/frameworks/*"], None),
    (r"\bgranules?\b", "granularity", ["cli/max_seq.cpp", "tests/search/question.cpp", "tests/e2e/*"], None),
    (r"\black(s|ed|ing)?\b", "short by, missing", [], None),
    (r"\bnine of ten\b", "90 % interval", [], None),
    (r"\bshrunken\b", "sampled", [], None),
    (r"\bfast path\b", "sampled program", [], None),
    (r"\bthe exact way\b", "full simulation", [], None),
    (r"\bmend(s|ed|ing)?\b", "repair", [], None),
    (r"\brivals?\b", "alternative", ["cli/plan.cpp"], None),
    (r"\bobstacles?\b", "limiting factor", [], None),
    (r"\blifts? (the|a|that|it|its)\b", "remedy, removes the limit", [], None),
    (r"\bno other beats\b", "Pareto front", [], None),
    (r"\b(nobody|whoever|somebody|everybody|anybody|anyone|someone)\b", "say who or what", [], None),
    (r"\bdealt out\b|\bdeals? out\b", "distribute", [], None),
    (r"(?<!there )(?-i:\bis none\b)", "is not a ...", [], None),
    (r"\bat work\b", "running, busy", [], None),
    (r"\b(goes|gone|go|going) on (from|with|as|there|at|to)\b", "continue", [], None),
    (r"\bbeside\b", "next to, with, besides", ["cli/max_seq.cpp", "tests/e2e/planning_test.cpp"], None),
    (r"\bso many\b", "a number of", [], None),
    (r"\bhope(s|d|ful|less)?\b", "candidate, may", [], None),
    (r"//+<? (?-i:Of) (?!course)", "begin with the subject", [], CODE),
    (r"//+<? (?-i:What) (is|no|all|each|every|may|can|has)\b", "begin with the subject", [], CODE),
]


def tracked(paths):
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths],
                         capture_output=True, check=True).stdout
    return sorted({name for name in out.decode().split("\0") if name})


def matches(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def main():
    parser = argparse.ArgumentParser(description="Finds retired words; docs/glossary.md has the ones to use.")
    parser.add_argument("--count", action="store_true", help="the number of findings for each rule")
    parser.add_argument("paths", nargs="*", help="only files below these")
    arguments = parser.parse_args()
    rules = [(re.compile(pattern, re.IGNORECASE), say, allowed, only, pattern)
             for pattern, say, allowed, only in RULES]
    counts = dict.fromkeys([rule[4] for rule in rules], 0)
    for name in tracked(arguments.paths):
        if matches(name, SKIPPED):
            continue
        try:
            with open(name, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        for number, line in enumerate(lines, 1):
            for expression, say, allowed, only, pattern in rules:
                if matches(name, allowed) or (only and not matches(name, only)):
                    continue
                found = expression.search(line)
                if not found:
                    continue
                counts[pattern] += 1
                if not arguments.count:
                    print(f'{name}:{number}: "{found.group(0)}": say {say}')
    if arguments.count:
        for pattern, count in counts.items():
            print(f"{count:6}  {pattern}")
    return 1 if any(counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

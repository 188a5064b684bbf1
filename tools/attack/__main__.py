"""Attack qkv: fuzzed files, bombs, kills, full disks, I/O errors, faults in an engine, command lines.

    python -m tools.attack                                     10 minutes, divided among all attacks
    python -m tools.attack --seed 7 --minutes 30 --only kills
    python -m tools.attack --seed 7 --only fuzz-safetensors --case 123    one case again

Every case runs in a process of its own, with limits of time and memory. A failure is kept in a folder: its
seed, the command that repeats it, its files and its output. The exit code is 1 if there is a failure."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from pathlib import Path

from tools.attack.registry import ATTACKS, select_attacks
from tools.attack.runner import AttackResult, run_attack, run_one_case

# A forked process has no threads of its parent, and nothing is downloaded.
ENVIRONMENT = dict(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")


def format_table(results: list[AttackResult]) -> str:
    """Return the results as a table; a star marks attacks of which every case was run."""
    rows = [("attack", "cases", "seconds", "failures")]
    for result in results:
        star = "*" if result.is_complete else " "
        failures = "did not end" if result.error else str(result.num_failures)
        rows.append((result.name, f"{result.num_cases}{star}", f"{result.seconds:.0f}", failures))
    total = (sum(r.num_cases for r in results), sum(r.seconds for r in results))
    num_failures = sum(result.num_failures for result in results)
    rows.append(("total", f"{total[0]} ", f"{total[1]:.0f}", str(num_failures)))
    width = max(len(row[0]) for row in rows)
    lines = [f"{row[0]:<{width}}{row[1]:>10}{row[2]:>10}{row[3]:>14}" for row in rows]
    if any(result.is_complete for result in results):
        lines.append("* every case of the attack was run")
    return "\n".join(lines)


def attack_all(
    names: list[str], *, seed: int, minutes: float, failures: Path
) -> list[AttackResult]:
    """Run attacks one after the other; time that one does not need goes to those after it."""
    end = time.monotonic() + 60 * minutes
    results = []
    for index, name in enumerate(names):
        remaining = sum(ATTACKS[other].share for other in names[index:])
        seconds = (end - time.monotonic()) * ATTACKS[name].share / remaining
        results.append(
            run_attack(
                name,
                ATTACKS[name].load(),
                seed=seed,
                seconds=seconds,
                failures=failures,
                header=f"[{index + 1}/{len(names)}]",
            )
        )
        result = results[-1]
        print(
            f"[{index + 1}/{len(names)}] {name}: {result.num_cases} cases in "
            f"{result.seconds:.0f} s, {result.num_failures} failures",
            flush=True,
        )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.attack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="seed of all cases; default: a random one")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit of all attacks")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="groups or attacks to run")
    parser.add_argument("--case", type=int, help="run this case of one attack again")
    parser.add_argument("--list", action="store_true", help="list the attacks")
    parser.add_argument(
        "--failures", type=Path, default=Path("attack-failures"), help="folder of the failures"
    )
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)  # before an attack imports torch
    try:
        selected = select_attacks(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        for name, entry in selected.items():
            summary = (entry.load().__doc__ or "").splitlines()[0]
            print(f"{entry.group:<10}{name:<24}{summary}")
        return 0
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    failures = options.failures.absolute()
    if options.case is not None:
        if len(selected) != 1 or options.seed is None:
            parser.error("--case needs --seed and --only with one attack")
        name, entry = next(iter(selected.items()))
        try:
            reason = run_one_case(
                name, entry.load(), seed=seed, index=options.case, failures=failures
            )
        except ValueError as error:
            parser.error(str(error))
        print("passed" if reason is None else f"{reason}\nfiles: {failures}")
        return int(reason is not None)
    print(f"seed {seed}, {options.minutes:g} minutes, {len(selected)} attacks", flush=True)
    results = attack_all([*selected], seed=seed, minutes=options.minutes, failures=failures)
    print("\n" + format_table(results))
    has_failures = any(result.num_failures or result.error for result in results)
    if has_failures:
        print(f"failures: {failures}")
    return int(has_failures)


if __name__ == "__main__":
    sys.exit(main())

"""python -m graph.run: start or resume a run.

Exit codes: 0 done (a used-up budget is done), 1 error, 2 usage or configuration, 3 waiting for
approval, 75 run locked by another process, 130 interrupted and resumable.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXIT_ERROR, EXIT_USAGE, EXIT_LOCKED, EXIT_INTERRUPTED = 1, 2, 75, 130

EPILOG = """examples:
  python -m graph.run                                    the default run: math, five minutes
  python -m graph.run --set recipe.optim.lr=2e-3         start from a damaged recipe
  python -m graph.run --resume math-seed0 --minutes 10   go on with more budget (total)
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m graph.run",
        description="Train a policy with RL while specialists improve the training harness.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--config", type=Path, metavar="FILE", help="TOML configuration (graph/configs/ holds examples)")
    p.add_argument("--domain", help="task domain: math (arithmetic) or code (programs, run in a sandbox)")
    p.add_argument("--policy", metavar="DIR", help="Hugging Face checkpoint directory to train instead of the default")
    p.add_argument("--tasks", metavar="FILE", help="own tasks: JSONL (messages, domain, answer, tag) or verl parquet")
    p.add_argument(
        "--harness", metavar="DIR", help="own reward terms and diagnostics: reward/*.toml, diagnostics/*.toml"
    )
    p.add_argument("--runs-dir", metavar="DIR", help="where runs are kept (default: runs)")
    p.add_argument("--name", help="name of the run (default: domain and seed)")
    p.add_argument("--versions", type=int, metavar="N", help="candidate versions to train at most")
    p.add_argument("--minutes", type=float, metavar="M", help="wall time budget of the run")
    p.add_argument("--seed", type=int, metavar="S", help="seed of everything random")
    p.add_argument("--backend", help="where training runs: embedded")
    p.add_argument("--sandbox", help="what isolates programs: auto, docker, bubblewrap or none (default: auto)")
    p.add_argument(
        "--memory", metavar="DIR", help="learn from runs that left their cases and skills there (default: none)"
    )
    p.add_argument("--logger", metavar="NAMES", help="comma list: console, file, tensorboard, trackio, wandb")
    p.add_argument("--specialists", help="who decides: playbook")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any configuration key, repeatable")
    p.add_argument("--resume", metavar="RUN", help="go on with a run (name or folder); takes --minutes and --versions")
    p.add_argument("--dry-run", action="store_true", help="print the resolved configuration and the plan, do nothing")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout at the end, progress on stderr")
    p.add_argument("--doctor", action="store_true", help="check the installation and each optional part")
    return p


FLAGS = (
    "domain",
    "policy",
    "tasks",
    "runs_dir",
    "name",
    "versions",
    "minutes",
    "seed",
    "backend",
    "sandbox",
    "logger",
    "specialists",
    "memory",
    "harness",
)


def flags_of(args: argparse.Namespace) -> dict[str, Any]:
    return {f"run.{name}": getattr(args, name) for name in FLAGS if getattr(args, name) is not None}


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    from trainer.types import InputError

    try:
        if args.doctor:
            from graph.doctor import doctor

            return doctor(sys.stdout, as_json=args.json)
        return _start(args)
    except InputError as err:
        print(f"error: {err}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("stopped; finished work is kept, --resume goes on", file=sys.stderr)
        return EXIT_INTERRUPTED


def _start(args: argparse.Namespace) -> int:
    from graph import drive, session
    from graph.config import dump, resolve
    from trainer.storage import storage_error, storage_line
    from trainer.types import InputError

    sets: dict[str, str] = {}
    for text in args.set:
        key, sign, value = text.partition("=")
        if not sign:
            raise InputError(f"--set {text}: expected KEY=VALUE, for instance --set recipe.optim.lr=2e-3")
        sets[key.strip()] = value.strip()
    flags = flags_of(args)
    if args.resume:
        extra = sorted(set(flags) - {"run.minutes", "run.versions", "run.runs_dir"}) + sorted(sets)
        if extra or args.config:
            raise InputError(
                f"--resume: {extra[0] if extra else '--config'} cannot change in a run; "
                "only --minutes and --versions can, start a new run for the rest"
            )
        root = session.find_run(args.resume, Path(flags.pop("run.runs_dir", "runs")))
        action: drive.Start | drive.Resume = drive.Resume(root, minutes=args.minutes, versions=args.versions)
    else:
        resolved = resolve(args.config, os.environ, flags, sets)
        run = resolved.config.run
        runs_dir = Path(run.runs_dir)
        root = session.run_dir(runs_dir, run.name or session.fresh_name(runs_dir, run.domain, run.seed))
        if args.dry_run:
            drive.check(resolved)
            print(dump(resolved) + "\n" + drive.plan(resolved, root))
            return 0
        action = drive.Start(root, resolved)
    try:
        return drive.drive(action, as_json=args.json)
    except session.Locked as err:
        print(f"error: {err}", file=sys.stderr)
        return EXIT_LOCKED
    except (OSError, RuntimeError) as err:
        if not storage_error(err, root):
            raise
        print(f"error: {storage_line(err, root)}, then --resume {shlex.quote(str(root))}", file=sys.stderr)
        return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())

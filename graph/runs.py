"""python -m graph.runs: list runs, show a run, one of its versions, rollouts or findings, a version's health (a live run may
be read); check and repair one, keep them within a disk budget."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m graph.runs", description="List and show runs.")
    commands = p.add_subparsers(dest="command", required=True)
    lister = commands.add_parser("list", help="all runs with status, champion and score")
    show = commands.add_parser("show", help="one run; with --version or --rollout one of its parts")
    show.add_argument("run", metavar="RUN", help="name or folder of the run")
    part = show.add_mutually_exclusive_group()
    part.add_argument("--version", metavar="V", help="diagnosis, intervention, backtest, gate and diff of one version")
    part.add_argument("--rollout", metavar="ID", help="one rollout with every reward term")
    part.add_argument("--finding", metavar="ID", help="DIAGNOSTIC or VERSION/DIAGNOSTIC: a finding and its rollouts")
    check = commands.add_parser("check", help="is the run whole? exit 0 sound, 1 problems, 2 usage, 75 in use")
    check.add_argument("run", metavar="RUN", help="name or folder of the run")
    check.add_argument("--repair", action="store_true", help="restore what can be restored; nothing is lost")
    health = commands.add_parser(
        "health", help="four layers of evidence on one version against its parent, in Markdown"
    )
    health.add_argument("run", metavar="RUN", help="name or folder of the run")
    health.add_argument("--version", metavar="V", help="any version that was trained (default: the champion)")
    prune = commands.add_parser("prune", help="keep runs within a disk budget; scores, decisions and champions stay")
    which = prune.add_mutually_exclusive_group(required=True)
    which.add_argument("run", nargs="?", metavar="RUN", help="name or folder of the run")
    which.add_argument("--all", action="store_true", help="all runs together, the oldest first")
    prune.add_argument("--budget", required=True, metavar="SIZE", help="for instance 5GB")
    prune.add_argument("--dry-run", action="store_true", help="say what would be dropped")
    for command in (lister, show, check, health, prune):
        command.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR")
        command.add_argument("--json", action="store_true", help="JSON on stdout")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    from graph.session import find_run
    from trainer.types import InputError

    try:
        if args.command == "list":
            show_value([overview(root) for root in roots(args.runs_dir)], args.json)
            return 0
        if args.command == "prune":
            from graph.prune import parse_size, prune

            oldest = sorted(roots(args.runs_dir), key=lambda root: (root / "manifest.json").stat().st_mtime)
            chosen = oldest if args.all else [find_run(args.run, args.runs_dir)]
            return prune(chosen, parse_size(args.budget), dry_run=args.dry_run, as_json=args.json)
        root = find_run(args.run, args.runs_dir)
        if args.command == "check":
            from graph.integrity.command import check

            return check(root, repair=args.repair, as_json=args.json)
        from graph import show

        if args.command == "health":
            from graph.health import print_health

            print_health(root, args.version, args.json)
        elif args.version:
            show_value(show.version_story(root, args.version), args.json)
        elif args.rollout:
            show_value(show.rollout(root, args.rollout), args.json)
        elif args.finding:
            show_value(show.finding(root, args.finding), args.json)
        else:
            show_value({**overview(root), "ledger": list(ledger_lines(root))}, args.json)
    except InputError as err:
        print(f"error: {err}", file=sys.stderr)
        return 2
    return 0


def roots(runs_dir: Path) -> list[Path]:
    return sorted(p.parent for p in runs_dir.glob("*/manifest.json"))


def overview(root: Path) -> dict[str, Any]:
    """Status and result of a run, as far as it has them."""
    from graph.leftovers import alive
    from graph.record import read_record
    from graph.session import StatusFile
    from graph.summary import Summary, percent, points

    status = "new"
    if (root / "status.json").exists():
        said = read_record(root / "status.json", StatusFile)
        status = "killed" if said.status == "running" and not alive(said.pid) else said.status
    out: dict[str, Any] = {"run": root.name, "status": status}
    if (root / "summary.json").exists():
        s = read_record(root / "summary.json", Summary)
        out |= {
            "champion": s.champion.version,
            "sealed": percent(s.champion.sealed),
            "gain": points(s.gain.mean, s.gain.ci_low, s.gain.ci_high),
            "versions": len(s.versions),
            "wall_s": round(s.wall_s),
        }
    return out


def ledger_lines(root: Path) -> Iterator[str]:
    from graph.record import RunRecord
    from graph.summary import points

    for e in RunRecord(root).entries("ledger"):
        if e["kind"] == "baseline":
            yield f"{e['version']}: baseline, {100 * e['scores']['validation/mean']:.1f} % on validation"
        else:
            gate = e["gate"] or {}
            delta = points(gate.get("delta"), gate.get("ci_low"), gate.get("ci_high"))
            yield f"{e['version']} ← {e['parent']}: {e['title']}: {e['verdict']} {delta}; {'; '.join(e['reasons'])}"


def show_value(value: Any, as_json: bool) -> None:
    """JSON, or indented text for a person; control characters of untrusted text are made visible."""
    if as_json:
        print(json.dumps(value, ensure_ascii=False, default=str))
        return
    for line in text_lines(value):
        print(line)


def text_lines(value: Any, indent: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict | list) and item:
                yield f"{indent}{key}:"
                yield from text_lines(item, indent + "  ")
            elif isinstance(item, str) and "\n" in item:
                yield f"{indent}{key}:"
                yield from (f"{indent}  {_clean(line)}" for line in item.splitlines())
            else:
                yield f"{indent}{key}: {_clean(item)}"
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield indent + "  ".join(
                    f"{k}={_clean(v)}"
                    for k, v in item.items()
                    if not isinstance(v, dict | list) and v not in ("", None)
                )
            else:
                yield f"{indent}- {_clean(item)}"
    else:
        yield indent + _clean(value)


def _clean(item: Any) -> str:
    text = f"{item:.4g}" if isinstance(item, float) else str(item)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader (head, less) has seen enough
        sys.stderr.close()

"""python -m graph.runs: list runs, show a run, one version, one rollout or a version's health (a live
run may be read); check and repair one."""

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
    check = commands.add_parser("check", help="is the run whole? exit 0 sound, 1 problems, 2 usage, 75 in use")
    check.add_argument("run", metavar="RUN", help="name or folder of the run")
    check.add_argument("--repair", action="store_true", help="restore what can be restored; nothing is lost")
    health = commands.add_parser(
        "health", help="four layers of evidence on one version against its parent, in Markdown"
    )
    health.add_argument("run", metavar="RUN", help="name or folder of the run")
    health.add_argument("--version", metavar="V", help="any version that was trained (default: the champion)")
    for command in (lister, show, check, health):
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
        root = find_run(args.run, args.runs_dir)
        if args.command == "check":
            from graph.integrity.command import check

            return check(root, repair=args.repair, as_json=args.json)
        if args.command == "health":
            from graph.health import print_health

            print_health(root, args.version, args.json)
        elif args.version:
            show_value(version_story(root, args.version), args.json)
        elif args.rollout:
            show_value(rollout(root, args.rollout), args.json)
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
    from graph.record import read_record
    from graph.session import StatusFile
    from graph.summary import Summary, percent, points

    status = read_record(root / "status.json", StatusFile).status if (root / "status.json").exists() else "new"
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


def version_story(root: Path, version: str) -> dict[str, Any]:
    """Everything decided about one version, and the diff of its harness."""
    from graph.record import RunRecord
    from trainer.harness import HarnessRepo
    from trainer.types import InputError

    record = RunRecord(root)
    folder = record.version_dir(version)
    if version != Path(version).name or not folder.is_dir():
        known = sorted(p.name for p in (root / "versions").glob("v*"))
        raise InputError(f"--version {version}: no such version in {root.name}; known: {', '.join(known) or 'none'}")
    out: dict[str, Any] = {}
    for name in ("version", "diagnosis", "intervention", "backtest", "gate", "curation", "health"):
        path = folder / f"{name}.json"
        if path.exists():
            try:
                out[name] = json.loads(path.read_bytes())
            except ValueError as err:
                raise InputError(f"{path}: damaged ({err}); remove it and --resume to make it again") from err
    parent = (out.get("version") or {}).get("parent", "")
    if (folder / "proposal.json").exists() and record.saved(parent, "version"):
        base = json.loads((record.version_dir(parent) / "version.json").read_bytes())["harness_commit"]
        if commit := out["version"]["harness_commit"]:
            out["diff"] = HarnessRepo.open(root / "harness").diff(base, commit).patch
    return out


def rollout(root: Path, rollout_id: str) -> dict[str, Any]:
    """One training rollout of any version, with prompt, reply and every reward term."""
    from trainer.evidence import find_rollout
    from trainer.types import InputError

    directories = sorted((root / "versions").glob("v*/seed-*/train/rollouts"))
    found = find_rollout(directories, rollout_id)
    if found is None:
        raise InputError(f"--rollout {rollout_id}: no such rollout in {root.name}; health findings list rollout ids")
    return found


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

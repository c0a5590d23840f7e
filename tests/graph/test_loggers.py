"""Loggers get every line of a run's files once, and cannot stop a run."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from graph import loggers
from graph.loggers import Data, Follower, following, parse
from trainer.types import InputError

Line = tuple[str, int, Data]


class Kept:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.closed = 0

    def log(self, series: str, step: int, data: Data) -> None:
        self.lines.append((series, step, data))

    def close(self) -> None:
        self.closed += 1


class Failing(Kept):
    def log(self, series: str, step: int, data: Data) -> None:
        super().log(series, step, data)
        raise ConnectionError("no route\nto host")


def metrics(root: Path, attempt: int, steps: range, tail: str = "", version: str = "v0001") -> None:
    folder = root / "versions" / version / "seed-0" / "train"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": {"outcome/mean": step / 10}}) + "\n" for step in steps]
    with (folder / f"metrics-{attempt}.jsonl").open("a") as file:
        file.write("".join(lines) + tail)


def ledger(root: Path, *entries: Mapping[str, object]) -> None:
    (root / "record").mkdir(parents=True, exist_ok=True)
    with (root / "record" / "ledger.jsonl").open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


BASELINE = {"kind": "baseline", "version": "v0000", "scores": {"validation/mean": 0.5}}
PROMOTED = {
    "kind": "verdict",
    "version": "v0001",
    "verdict": "promoted",
    "factor": "optim.lr",
    "title": "lower the rate",
    "gate": {"delta": 0.06, "ci_low": 0.03, "ci_high": None, "p": 0.001, "reasons": ["x"]},
}


def test_every_line_comes_once_in_order_and_a_torn_one_when_it_is_whole(tmp_path: Path) -> None:
    kept = Kept()
    follower = Follower(tmp_path, {"kept": kept}, print)
    follower.poll()
    metrics(tmp_path, 1, range(1, 3), tail='{"step": 3, "data": {"outcome/')
    follower.poll()
    follower.poll()
    assert [step for _, step, _ in kept.lines] == [1, 2]
    metrics(tmp_path, 1, range(0), tail='mean": 0.3}}\n')
    follower.poll()
    assert kept.lines == [("v0001/seed-0", step, {"outcome/mean": step / 10}) for step in (1, 2, 3)]


def test_what_a_new_attempt_repeats_and_what_an_earlier_process_passed_on_does_not_come_again(tmp_path: Path) -> None:
    first, second = Kept(), Kept()
    metrics(tmp_path, 1, range(1, 4))
    Follower(tmp_path, {"kept": first}, print).poll()
    metrics(tmp_path, 2, range(1, 6))
    Follower(tmp_path, {"kept": second}, print).poll()
    assert [step for _, step, _ in first.lines] == [1, 2, 3]
    assert [step for _, step, _ in second.lines] == [4, 5]


def test_verdicts_come_with_the_numbers_of_the_gate(tmp_path: Path) -> None:
    kept = Kept()
    ledger(tmp_path, BASELINE, PROMOTED, {**PROMOTED, "version": "v0002", "verdict": "refused", "gate": None})
    Follower(tmp_path, {"kept": kept}, print).poll()
    words = {"factor": "optim.lr", "title": "lower the rate"}
    assert kept.lines == [
        ("verdicts", 0, {"verdict": "baseline", "validation/mean": 0.5}),
        ("verdicts", 1, {"verdict": "promoted", **words, "delta": 0.06, "ci_low": 0.03, "p": 0.001}),
        ("verdicts", 2, {"verdict": "refused", **words}),
    ]


def test_a_damaged_line_is_passed_over(tmp_path: Path) -> None:
    kept = Kept()
    metrics(tmp_path, 1, range(1, 2), tail="no json\n")
    metrics(tmp_path, 1, range(2, 3))
    Follower(tmp_path, {"kept": kept}, print).poll()
    assert [step for _, step, _ in kept.lines] == [1, 2]


def test_a_logger_that_fails_is_said_once_and_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    kept, failing = Kept(), Failing()
    follower = Follower(tmp_path, {"failing": failing, "kept": kept}, said.append)
    metrics(tmp_path, 1, range(1, 5))
    follower.poll()
    follower.close()
    assert said == ["logger failing failed (ConnectionError: no route to host); it is dropped and the run goes on"]
    assert (len(failing.lines), failing.closed) == (1, 0)
    assert (len(kept.lines), kept.closed) == (4, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("console,tensorbord", r"^run\.logger: unknown logger 'tensorbord'; did you mean 'tensorboard'\?$"),
        ("wandb", r"^run\.logger: 'wandb' needs the package wandb: pip install wandb, or leave it out$"),
    ],
)
def test_unknown_and_absent_are_refused_with_the_remedy(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()  # what an earlier run of it left in the working directory
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *(p for p in sys.path if not (Path(p) / "wandb" / "__init__.py").exists())])
    with pytest.raises(InputError, match=message):
        parse(text)


def test_names_are_read_from_a_comma_list() -> None:
    assert parse("console, file,tensorboard,file") == ("console", "file", "tensorboard")
    assert parse("") == ()


def test_tensorboard_holds_what_the_files_hold(tmp_path: Path) -> None:
    said: list[str] = []
    with following(tmp_path, ["console", "tensorboard"], lambda node, line: said.append(line)):
        metrics(tmp_path, 1, range(1, 4))
        metrics(tmp_path, 1, range(1, 3), version="v0000")
        ledger(tmp_path, BASELINE, PROMOTED)
    assert said == []
    read = {}
    for series in ("v0000/seed-0", "v0001/seed-0", "verdicts"):
        events = EventAccumulator(str(tmp_path / "tensorboard" / series)).Reload()
        read[series] = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        if series == "verdicts":
            texts = [e.tensor_proto.string_val[0].decode() for e in events.Tensors("verdict/text_summary")]
    # Event files hold single precision, and 0.1 and the like round to it within 2**-24 of themselves.
    assert read["v0001/seed-0"] == {
        "outcome/mean": [(step, pytest.approx(step / 10, rel=2**-24)) for step in (1, 2, 3)]
    }
    assert [step for step, _ in read["v0000/seed-0"]["outcome/mean"]] == [1, 2]
    assert read["verdicts"]["delta"][0][0] == 1
    assert texts == ["baseline", "promoted"]


def test_the_follower_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A run that is killed leaves no process, and what it had written is passed on."""
    code = (
        "import sys, time; from pathlib import Path; from graph.loggers import following\n"
        "with following(Path(sys.argv[1]), ['tensorboard'], print):\n    print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline() == "up\n"
        (child,) = (int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split())
        metrics(tmp_path, 1, range(1, 3))
        handle = os.pidfd_open(child)
        os.kill(run.pid, signal.SIGKILL)
    try:
        assert select.select([handle], [], [], 60)[0], "the follower outlived its run"
    finally:
        os.close(handle)
    assert json.loads((tmp_path / "loggers.json").read_text())["steps"] == {"v0001/seed-0": 2}


def test_one_that_cannot_start_is_said_and_the_run_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    metrics(tmp_path, 1, range(1, 4))
    with following(tmp_path, ["tensorboard"], print):
        pass
    out, err = capfd.readouterr()
    assert out == "" and err.count("logger tensorboard failed (") == 1 and err.count("\n") == 1


def test_every_logger_names_its_package() -> None:
    assert loggers.PACKAGES.keys() == loggers.KINDS.keys()

"""The vocabulary of training, by topic; importers take every name from here.

Every record is frozen and refuses unknown keys, so that a typo in a file is an error with a name
instead of a silent default. Records that are written to disk carry ``schema_version``.
"""

from trainer.types.base import SCHEMA_VERSION, DiagnosticKind, InputError, Layer, Record, Severity, Verdict, flatten
from trainer.types.evaluation import EvalProtocol, Evaluation, Finding, HealthReport, JsonDict, ReplayReport
from trainer.types.harness import (
    REWARD_COLUMNS,
    ROLLOUT_COLUMNS,
    Change,
    Diagnostic,
    Harness,
    HarnessEdit,
    PutDiagnostic,
    PutTerm,
    RewardTerm,
    SetOption,
    SetWeight,
)
from trainer.types.jobs import Cost, EarlyStop, StepProgress, Trainer, TrainJob, TrainResult, TrainSpec, TrainStatus
from trainer.types.recipe import (
    ActorRecipe,
    AlgorithmRecipe,
    DataRecipe,
    FilterGroups,
    KlKind,
    LossAggMode,
    OptimRecipe,
    Recipe,
    RewardRecipe,
    RolloutRecipe,
)
from trainer.types.tasks import Case, Demonstration, Domain, Judged, Message, Task, Tests

__all__ = [
    "REWARD_COLUMNS",
    "ROLLOUT_COLUMNS",
    "SCHEMA_VERSION",
    "ActorRecipe",
    "AlgorithmRecipe",
    "Case",
    "Change",
    "Cost",
    "DataRecipe",
    "Demonstration",
    "Diagnostic",
    "DiagnosticKind",
    "Domain",
    "EarlyStop",
    "EvalProtocol",
    "Evaluation",
    "FilterGroups",
    "Finding",
    "Harness",
    "HarnessEdit",
    "HealthReport",
    "InputError",
    "JsonDict",
    "Judged",
    "KlKind",
    "Layer",
    "LossAggMode",
    "Message",
    "OptimRecipe",
    "PutDiagnostic",
    "PutTerm",
    "Recipe",
    "Record",
    "ReplayReport",
    "RewardRecipe",
    "RewardTerm",
    "RolloutRecipe",
    "SetOption",
    "SetWeight",
    "Severity",
    "StepProgress",
    "Task",
    "Tests",
    "TrainJob",
    "TrainResult",
    "TrainSpec",
    "TrainStatus",
    "Trainer",
    "Verdict",
    "flatten",
]

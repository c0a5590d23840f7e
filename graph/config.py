"""The configuration of a run: one frozen record per part, resolved from four layers.

Precedence, strongest first: command line flags and ``--set``, environment (``EVOTRAINER_*``), the
``--config`` file, defaults. The default recipe is the seed harness's ``recipe.toml``. Every value
keeps its origin, and the resolved configuration is saved beside the run.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from trainer.gate import GatePolicy
from trainer.types import InputError, Recipe, Record, flatten
from trainer.validation import one_line

DOMAIN_DEFAULTS = Path(__file__).parent / "configs" / "domains"
ENV_PREFIX = "EVOTRAINER_"
# Mappings whose keys are the user's own names.
OPEN_TABLES = frozenset({"recipe.reward.weights"})


class RunSection(Record):
    """What to run, where, and for how long. ``logger`` is a comma list of console, file (always written), tensorboard,
    trackio and wandb. ``name`` empty means a name made from domain and seed; ``sandbox_image``
    and ``docker_runtime`` (such as gVisor's ``runsc``) empty mean our own image and the engine's own runtime;
    ``memory`` is the folder in which runs leave cases and skills for each other, empty for none; ``harness`` one with reward
    terms and diagnostics of one's own."""

    domain: str = "math"
    backend: str = "embedded"
    specialists: str = "playbook"
    logger: str = "console,file"
    name: str = ""
    runs_dir: str = "runs"
    sandbox: str = "auto"
    sandbox_image: str = ""
    docker_runtime: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    versions: Annotated[int, Field(ge=0, le=1000)] = 8
    minutes: Annotated[float, Field(gt=0)] = 5.0
    policy: str = ""
    tasks: str = ""
    memory: str = ""
    harness: str = ""


class EvaluationSection(Record):
    """The evaluation protocol: task counts per suite, samples per task, sampling temperature."""

    validation: Annotated[int, Field(ge=4)] = 256
    sealed: Annotated[int, Field(ge=4)] = 512
    k: Annotated[int, Field(ge=1, le=64)] = 8
    temperature: Annotated[float, Field(gt=0, le=5)] = 1.0
    max_response_length: Annotated[int, Field(ge=4)] = 64
    sampling_seed: int = 20260603


class TrainerSection(Record):
    """Budgets of one training. ``token_budget`` counts sampled tokens and is equal for all versions;
    ``parallel`` jobs run at once (0: one per core), each on one thread; ``seeds`` of the baseline; every ``save_interval_s``
    a training saves what a kill must not cost."""

    token_budget: Annotated[int, Field(gt=0)] = 160_000
    deadline_s: Annotated[float, Field(gt=0)] = 1800.0
    parallel: Annotated[int, Field(ge=0, le=256)] = 0
    rollout_workers: Annotated[int, Field(ge=0, le=64)] = 0
    seeds: Annotated[int, Field(ge=1, le=16)] = 4
    save_interval_s: Annotated[float, Field(ge=0)] = 15.0


class WarmStartSection(Record):
    """Supervised steps that make the default policy; unused with ``--policy``."""

    steps: Annotated[int, Field(ge=1)] = 1400


class DesignerSection(Record):
    """Where candidates come from: the specialists (``run.specialists``), or ``null``: edits that cannot matter, trained on seeds
    of their own, which measure how often a run claims something where there is nothing. ``given`` lists a person's own edits,
    ``factor=value``, which are tried in their place and order; ``backtest`` false sends them to training unscreened.
    ``use_history``: weigh the backtest by how the predictions of earlier runs of the same kind came out.
    ``seed_validity`` false leaves the human reference's validity diagnostics out of the harness: what then names an exploit was
    found by the run. ``evolve``: where the diagnostics do not suffice, search for a new one. ``escalate``: after failures in a row audit the evaluation,
    look at another layer, take away rather than add, and leave a family of edits that failed twice."""

    candidates: Literal["specialists", "null"] = "specialists"
    given: tuple[str, ...] = ()
    backtest: bool = True
    use_history: bool = True
    seed_validity: bool = True
    evolve: bool = True
    escalate: bool = True


class RunConfig(Record):
    """A resolved configuration."""

    run: RunSection = RunSection()
    evaluation: EvaluationSection = EvaluationSection()
    trainer: TrainerSection = TrainerSection()
    warm_start: WarmStartSection = WarmStartSection()
    designer: DesignerSection = DesignerSection()
    gate: GatePolicy = GatePolicy()
    recipe: Recipe = Recipe()


class Resolved(Record):
    """A configuration with the origin of each value (dotted key to ``default``, file name, variable or flag)."""

    config: RunConfig
    origins: Mapping[str, str]

    def chosen(self, section: str) -> dict[str, Any]:
        """Dotted keys below ``section`` that somebody set, with their values."""
        flat = dict(flatten(self.config.model_dump(mode="json")))
        head = section + "."
        return {k[len(head) :]: flat[k] for k, o in self.origins.items() if k.startswith(head) and o != "default"}


def _suggest(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    if not close:
        leaf = key.rsplit(".", 1)[-1]
        close = [k for k in known if k.rsplit(".", 1)[-1] == leaf][:1]
    return f"did you mean '{close[0]}'?" if close else "run with --dry-run to see all keys"


def _is_open(key: str) -> bool:
    return any(key.startswith(table + ".") for table in OPEN_TABLES)


def seed_files(config: RunConfig) -> dict[str, str]:
    """Path to text of what a run's harness begins with: the human reference, and one's own terms and diagnostics. Raises
    InputError for a folder that cannot be used."""
    from trainer.seed_harness import load_seed_files, own_files, without_validity

    files = load_seed_files(config.run.domain)
    if not config.designer.seed_validity:
        files = without_validity(files)
    return {**files, **own_files(Path(config.run.harness))} if config.run.harness else files


def parse_value(text: str) -> Any:
    """A TOML value if the text is one, else the text itself (so that ``--set run.domain=math`` needs no quotes)."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _defaults(domain: str) -> dict[str, Any]:
    """Flat defaults of a domain; the recipe's come from the seed harness, which is what a new run starts from."""
    from trainer.seed_harness import load_seed_files

    tree = RunConfig().model_dump(mode="json")
    recipe = load_seed_files(domain)["recipe.toml"]
    tree["recipe"] = Recipe.model_validate(tomllib.loads(recipe)).model_dump(mode="json")
    own = DOMAIN_DEFAULTS / f"{domain}.toml"
    return dict(flatten(tree)) | (read_file(own) if own.is_file() else {})


def read_file(path: Path) -> dict[str, Any]:
    """Flat keys of a TOML configuration file."""
    try:
        return dict(flatten(tomllib.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError as err:
        raise InputError(f"{path}: no such configuration file; graph/configs/ holds examples") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise InputError(f"{path}: not valid TOML ({err}); mend the line or drop --config") from err
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror}); check the path and its permissions") from err


def read_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Flat key to (value text, variable). ``EVOTRAINER_TRAINER__TOKEN_BUDGET`` is
    ``trainer.token_budget``; a name without ``__`` is a key of ``run``, as the flags are."""
    out = {}
    for name, value in environ.items():
        if name.startswith(ENV_PREFIX):
            key = name[len(ENV_PREFIX) :].lower().replace("__", ".")
            out[key if "." in key else f"run.{key}"] = (value, name)
    return out


def resolve(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any], sets: Mapping[str, str]
) -> Resolved:
    """Merge the layers and validate once.

    ``flags`` are typed values by dotted key, ``sets`` texts of ``--set``. Raises InputError with
    one line that names the source, the key and a suggestion.
    """
    layers: list[tuple[str, str, Any]] = []
    layers += [(key, str(file), value) for key, value in (read_file(file) if file else {}).items()]
    layers += [(key, var, parse_value(text)) for key, (text, var) in read_environment(environ).items()]
    layers += [(key, "--" + key.rsplit(".", 1)[-1].replace("_", "-"), value) for key, value in flags.items()]
    layers += [(key, "--set", parse_value(text)) for key, text in sets.items()]
    domain = next((value for key, _, value in reversed(layers) if key == "run.domain"), RunSection().domain)
    # A domain's name becomes a path; one that is unknown is refused later, by name.
    defaults = _defaults(domain if isinstance(domain, str) and domain.isidentifier() else "")
    values, origins = dict(defaults), dict.fromkeys(defaults, "default")
    for key, origin, value in layers:
        if key not in defaults and not _is_open(key):
            raise InputError(f"{origin}: unknown key '{key}'; {_suggest(key, defaults)}")
        values[key], origins[key] = value, origin
    return Resolved(config=validate(values, origins), origins=origins)


def validate(values: Mapping[str, Any], origins: Mapping[str, str]) -> RunConfig:
    """Build the record from flat values; the error names the layer a bad value came from."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        node = tree
        *tables, leaf = key.split(".")
        for table in tables:
            node = node.setdefault(table, {})
        node[leaf] = value
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as err:
        key = ".".join(str(part) for part in err.errors()[0]["loc"])
        origin = next((o for k, o in origins.items() if key == k or key.startswith(k + ".")), "configuration")
        raise one_line(err, origin, RunConfig) from err


def dump(resolved: Resolved) -> str:
    """The resolved configuration as TOML that ``--config`` reads, with the origin of each value as a comment."""
    import tomli_w

    lines, flat_origins = [], dict(resolved.origins)
    section = ""
    for line in tomli_w.dumps(resolved.config.model_dump(mode="json")).splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif " = " in line:
            origin = flat_origins.get(section + line.split(" = ", 1)[0].strip('"'), "default")
            lines.append(line if origin == "default" else f"{line}  # {origin}")
            continue
        lines.append(line)
    return "\n".join(lines) + "\n"

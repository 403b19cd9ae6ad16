"""What a scenario is: one strict TOML file. Knows nothing of SGLang's flags, which pass through as a plain table."""

import difflib
import hashlib
import math
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from kit.errors import UnusableInput

FlagValue: TypeAlias = bool | int | float | str
MOST_USERS = 100_000
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table in a scenario: read-only, and an unknown key is an error."""


class Model(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Weights by Hugging Face id and commit, or the name of a folder below the models folder.

    `revision` is a commit hash, "" for a folder of the reader, or "unverified" while nobody has obtained it.
    """

    path: str
    revision: str = ""


class Server(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all arms share: SGLang flags (without the leading dashes), environment and the port."""

    flags: dict[str, FlagValue] = {}
    env: dict[str, str] = {}
    port: int = 30000
    start_timeout_s: float = 900.0


class Arm(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One server configuration. Flags and environment lie over those of `[server]`; `draft` adds the draft model."""

    flags: dict[str, FlagValue] = {}
    env: dict[str, str] = {}
    draft: bool = False


class Dataset(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where prompts come from; `source` names a file in `kit/workload/`. Lengths are in tokens.

    `output_len` None means the data set's own length for each prompt. `path` is the reader's file (source `prompts`).
    """

    source: str
    input_len: int | None = None
    output_len: int | None = None
    range_ratio: float = 1.0
    path: str = ""
    chat_template: bool = False
    ignore_eos: bool = True


class Sweep(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The axes. A point asks for `max(min_requests, requests_per_user * concurrency)` requests.

    `rates` adds open-loop points (requests per second, Poisson arrivals, seeded) beside the fixed concurrencies.
    `seeds_per_block` starts every server anew after so many seeds; None runs all seeds on one start.
    `warmup_per_user` requests per user of `warmup_output_len` tokens go before each trial and are not measured.
    """

    concurrency: list[int]
    seeds: list[int]
    rates: list[float] = []
    requests_per_user: int = 4
    min_requests: int = 16
    seeds_per_block: int | None = None
    warmup_per_user: int = 1
    warmup_output_len: int = 32


class Limits(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When to give a request or a trial up. Seconds, and the share of failed requests that voids a trial."""

    request_timeout_s: float = 600.0
    silence_timeout_s: float = 120.0
    failed_share: float = 0.01


class Gpu(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The card that is expected and its clock lock; `lock_mhz` is the SM clock asked for."""

    expected: str = ""
    count: int = 1
    ids: list[int] = []
    lock: Literal["required", "preferred", "off"] = "off"
    lock_mhz: int | None = None


class Image(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The container image, pinned: `repository:tag@sha256:digest`."""

    ref: str
    sglang: str


class Process(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the process engine finds SGLang: the Python that runs the kit, or the kit's own CPU environment."""

    environment: Literal["current", "cpu"] = "current"


class Slo(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Objectives of interactive traffic: limits on the P99 TTFT and on the median TPOT, in seconds."""

    ttft_p99_s: float
    tpot_p50_s: float


ClaimKind: TypeAlias = Literal["pool", "ratio", "absolute", "order", "condition", "cited"]
Relation: TypeAlias = Literal["above", "below", "not above", "not below"]


class Claim(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One thing that a source published, in our own words, and how `kit.claims` judges it.

    `metric` is a tag of the metrics registry (a number over seeds) or one of `kit.claims.FACTS` (a number that a server
    or the scenario states). A ratio is metric(arm) / metric(against); an order says how the two lie. No `dataset` and
    no `concurrency` mean every one of the run's; `concurrency = [0]` is a claim on servers. Published is `value`, or
    the range from `low` to `high`; `tolerance` is relative and has its `reason`. `card` names the card that the figure
    belongs to: on another it is shown, not judged. `forced` says that it holds with random weights or a forced accept
    length too. `figures` are the published numbers as the source prints them. A cited claim is never judged.
    """

    id: str
    text: str
    kind: ClaimKind
    metric: str
    arm: str = ""
    against: str = ""
    relation: Relation | None = None
    dataset: list[str] = []
    concurrency: list[int] = []
    value: float | None = None
    low: float | None = None
    high: float | None = None
    tolerance: float = 0.0
    reason: str = ""
    card: str = ""
    forced: bool = False
    figures: list[str] = []


class Scenario(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A scenario as written in its file; `name` is the file's stem. See CONTRIBUTING.md for a walk through the keys.

    `record = "experts"` counts the tokens of each expert instead of taking times: its trials are void for timing.
    `changed` names the keys that `--set` laid over the file; the file itself has no say in it.
    """

    title: str
    question: str
    engine: Literal["docker", "process"]
    model: Model
    arms: dict[str, Arm]
    datasets: dict[str, Dataset]
    sweep: Sweep
    name: str = ""
    record: Literal["times", "experts"] = "times"
    baseline: str = "plain"
    draft: Model | None = None
    server: Server = Server()
    gpu: Gpu = Gpu()
    limits: Limits = Limits()
    image: Image | None = None
    process: Process = Process()
    slo: Slo | None = None
    inferred: dict[str, str] = {}
    claims: list[Claim] = []
    changed: list[str] = []


def load(path: Path, sets: dict[str, str] | None = None) -> Scenario:
    """Reads, overrides (`sets`: dotted key to TOML value) and checks one scenario file.

    Raises UnusableInput with file, key and the way out; nothing has been started by then.
    """
    table = _read_toml(path)
    for key, value in (sets or {}).items():
        _override(table, key, value, path)
    table["name"], table["changed"] = path.stem, sorted(sets or {})
    try:
        scenario = msgspec.convert(table, Scenario)
    except msgspec.ValidationError as error:
        raise UnusableInput(_explain(path, table, str(error))) from None
    _check(scenario, path)
    _check_pair(scenario, path, set(sets or {}))
    return scenario


def find(name: str, folder: Path) -> Path:
    """The file of the scenario called `name`; raises UnusableInput that lists the near ones."""
    path = folder / f"{name}.toml"
    if NAME.fullmatch(name) and path.is_file():
        return path
    known = sorted(p.stem for p in folder.glob("*.toml"))
    near = difflib.get_close_matches(Path(name).name.removesuffix(".toml"), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
    if name.endswith(".toml"):
        hint = f"a scenario is a file in that folder, and called by its name there without .toml; {hint}"
    raise UnusableInput(f"no scenario {name!r} in {folder.name}/: {hint}")


def fingerprint(scenario: Scenario) -> str:
    """sha256 over the resolved scenario: two runs with the same value asked for the same thing."""
    return hashlib.sha256(msgspec.json.encode(scenario, order="sorted")).hexdigest()


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnusableInput(f"{_place(path)}: no such scenario file; `invoke list` shows the scenarios") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnusableInput(f"{_place(path)}: not valid TOML: {error}") from None


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _override(table: dict[str, Any], key: str, text: str, path: Path) -> None:
    """Lays one `--set key=value` over the table; `model=NAME` is short for `model.path=NAME`."""
    *parents, last = key.split(".")
    place = table
    for parent in parents:
        place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise UnusableInput(f"--set {key}={text}: {parent} is no table in {path.name}")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    if not parents and last in ("model", "draft") and isinstance(value, str):
        value = {"path": value}
    place[last] = value


def _explain(path: Path, table: dict[str, Any], message: str) -> str:
    """Turns msgspec's message into one line with file, key and the way out."""
    what, _, where = message.partition(" - at `$")
    place = where.rstrip("`").lstrip(".") or "the top level"
    unknown = re.search(r"unknown field `([^`]+)`", what)
    if not unknown:
        return f"{_place(path)}: {place}: {what[0].lower()}{what[1:]}"
    near = difflib.get_close_matches(unknown[1], _fields_at(place), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"keys here: {', '.join(_fields_at(place))}"
    return f"{_place(path)}: {place}: unknown key {unknown[1]!r}; {hint}"


def _fields_at(place: str) -> list[str]:
    tables: dict[str, type[msgspec.Struct]] = {
        "model": Model, "draft": Model, "server": Server, "sweep": Sweep, "limits": Limits, "gpu": Gpu,
        "image": Image, "process": Process, "slo": Slo,
        "claims[...]": Claim, "arms[...]": Arm, "datasets[...]": Dataset,
    }  # fmt: skip
    return list(tables.get(place, Scenario).__struct_fields__)


def _check(scenario: Scenario, path: Path) -> None:
    """What types cannot say. One line for the first fault found."""
    for key, fault in _faults(scenario):
        raise UnusableInput(f"{_place(path)}: {key}: {fault}")


def _check_pair(scenario: Scenario, path: Path, changed: set[str]) -> None:
    """A draft belongs to its model: whoever changes the one has to say what becomes of the other."""
    new_model = {"model", "model.path"} & changed
    if new_model and any(a.draft for a in scenario.arms.values()) and not any(k.startswith("draft") for k in changed):
        assert scenario.draft is not None
        raise UnusableInput(
            f"{_place(path)}: model: is changed, and {scenario.draft.path} is another model's draft; "
            "give --set draft=… too, or copy the file and leave the arms with a draft out"
        )


def _faults(s: Scenario) -> list[tuple[str, str]]:
    sweep = s.sweep
    found: list[tuple[str, str]] = []

    def fault(bad: bool, key: str, text: str) -> None:
        if bad:
            found.append((key, text))

    fault(not s.model.path, "model.path", "is empty; name a Hugging Face id or a folder below the models folder")
    fault(s.draft is not None and not s.draft.path, "draft.path", "is empty; name a model or leave [draft] out")
    fault(s.baseline not in s.arms, "baseline", f"no arm is called {s.baseline!r}; add [arms.{s.baseline}]")
    untold = s.record == "experts" and s.engine != "process"
    fault(untold, "record", '"experts" needs engine = "process": the server writes a file that the kit must reach')
    fault(not s.datasets, "datasets", "name at least one, for example [datasets.random]")
    for name in [*s.arms, *s.datasets]:
        fault(not NAME.fullmatch(name), name, "names are made of a-z, 0-9, '-' and '.'")
    for name, arm in s.arms.items():
        fault(arm.draft and s.draft is None, f"arms.{name}.draft", "is true, but there is no [draft] table")
    for key in ("concurrency", "seeds"):
        values = getattr(sweep, key)
        fault(not values, f"sweep.{key}", "is empty; name at least one value")
        fault(len(set(values)) != len(values), f"sweep.{key}", f"names a value twice: {values}")
    fault(any(c < 1 for c in sweep.concurrency), "sweep.concurrency", "every value must be 1 or more")
    fault(any(c > MOST_USERS for c in sweep.concurrency), "sweep.concurrency", f"above {MOST_USERS:,} is no load")
    fault(
        any(not 0 < r < math.inf for r in sweep.rates),
        "sweep.rates",
        "every rate must be a number above 0 requests per second",
    )
    fault(any(x < 0 for x in sweep.seeds), "sweep.seeds", "seeds are 0 or more")
    for key in ("requests_per_user", "min_requests", "warmup_output_len", "seeds_per_block"):
        value = getattr(sweep, key)
        fault(value is not None and value < 1, f"sweep.{key}", "must be 1 or more")
    fault(sweep.warmup_per_user < 0, "sweep.warmup_per_user", "must be 0 or more")
    for name, data in s.datasets.items():
        for key in ("input_len", "output_len"):
            length = getattr(data, key)
            fault(length is not None and length < 1, f"datasets.{name}.{key}", "must be 1 token or more")
        fault(not 0 <= data.range_ratio <= 1, f"datasets.{name}.range_ratio", "must lie between 0 and 1")
    fault(not 1 <= s.server.port <= 65535, "server.port", f"{s.server.port} is no port; take 1 to 65535")
    fault(s.gpu.lock != "off" and s.gpu.lock_mhz is None, "gpu.lock_mhz", 'is missing; or set lock = "off"')
    fault(s.gpu.count < 1, "gpu.count", "must be 1 or more")
    for key in ("request_timeout_s", "silence_timeout_s"):
        fault(getattr(s.limits, key) <= 0, f"limits.{key}", "must be above 0 seconds")
    fault(not 0 <= s.limits.failed_share < 1, "limits.failed_share", "is a share between 0 and 1")
    for number, claim in enumerate(s.claims, 1):
        key = f"claims.{claim.id or number}"
        fault(claim.id in [c.id for c in s.claims[number:]], key, "is the id of two claims")
        found += [(key, text) for text in _claim_faults(s, claim)]
    return found


def _claim_faults(s: Scenario, claim: Claim) -> list[str]:
    ordered, ranged = claim.relation is not None, claim.low is not None or claim.high is not None
    paired = ordered or claim.kind == "ratio"
    checks = [
        (not NAME.fullmatch(claim.id), "id is made of a-z, 0-9, '-' and '.'"),
        (bool(claim.arm) and claim.arm not in s.arms, f"no arm is called {claim.arm!r}"),
        (bool(claim.against) and claim.against not in s.arms, f"no arm is called {claim.against!r}"),
        (paired and not (claim.arm and claim.against), f"kind {claim.kind!r} needs both arm and against"),
        (
            ordered != (claim.kind == "order") and claim.kind != "cited",
            "a relation makes an order, and an order has one",
        ),
        (not ordered and (claim.value is None) == (not ranged), "give either value, or low and high"),
        (ranged and (claim.low is None or claim.high is None), "a range needs both low and high"),
        (not 0 <= claim.tolerance < 1, "tolerance is a share between 0 and 1"),
        (claim.tolerance > 0 and not claim.reason, "a tolerance needs its reason"),
    ]
    unknown = [f"no data set is called {name!r}" for name in claim.dataset if name not in s.datasets]
    return [text for bad, text in checks if bad] + unknown

"""Writes measurements with a known truth as a run's folder, sealed as a real run seals it."""

import hashlib
from pathlib import Path

import msgspec

from kit import measurements as ms
from kit.analysis.summary import summarise
from kit.claims.found import Run
from kit.scenario import Claim, Scenario


def claimed(m: ms.Measurements, *claims: Claim) -> ms.Measurements:
    """The same measurements under a scenario with these claims."""
    scenario = {**m.run.scenario, "claims": msgspec.to_builtins(list(claims))}
    return msgspec.structs.replace(m, run=msgspec.structs.replace(m.run, scenario=scenario))


def run_of(m: ms.Measurements) -> Run:
    return Run(m, summarise(m), msgspec.convert(m.run.scenario, Scenario))


def on_card(m: ms.Measurements, name: str) -> ms.Measurements:
    sittings = [msgspec.structs.replace(s, gpus=[ms.GpuFacts(index=0, name=name)]) for s in m.sittings]
    return msgspec.structs.replace(m, sittings=sittings)


_WRITTEN: dict[tuple[int, bool], tuple[ms.Measurements, dict[Path, bytes]]] = {}


def write(m: ms.Measurements, folder: Path, finished: bool = True) -> Path:
    """The folder that `measurements.read` gives these measurements back from; written once, then copied."""
    key = id(m), finished
    if key not in _WRITTEN:
        _write(m, folder, finished)
        _WRITTEN[key] = m, {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        return folder
    for name, data in _WRITTEN[key][1].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _write(m: ms.Measurements, folder: Path, finished: bool) -> None:
    workloads = []
    for w in m.run.workloads:
        data = f'{{"index":0,"output_len":8,"text":"{w.sha256}"}}\n'.encode()
        ms.write_whole(folder / "workloads" / f"{w.dataset}-s{w.seed}.jsonl", data)
        workloads.append(msgspec.structs.replace(w, sha256=hashlib.sha256(data).hexdigest()))
    ms.write_record(folder / "run.json", msgspec.structs.replace(m.run, workloads=workloads))
    for s in m.sittings:
        ms.write_record(folder / f"sitting-{s.number}" / "sitting.json", s)
    for number, server in m.servers:
        place = folder / f"sitting-{number}" / server.leg
        ms.write_record(place / "server.json", server)
        ms.write_whole(place / "server.log", b"The server is fired up and ready to roll!\n")
    for t in m.trials:
        place = folder / f"sitting-{t.sitting}" / t.record.leg / t.record.trial
        ms.write_record(place / "trial.json", t.record)
        ms.write_whole(place / "requests.jsonl", b"".join(msgspec.json.encode(r) + b"\n" for r in t.requests))
        ms.seal(place)
    if finished:
        ms.seal(folder)

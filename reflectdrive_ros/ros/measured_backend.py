"""The backend that `reflectdrive doctor --measure` found the fastest here, for a node whose `model.backend` is auto.

Records are in ~/.cache/reflectdrive/backends.json: file and backend of the shortest full step with the plans of
float32, for weights, planner, decoding, device and threads. A record of another machine, of other versions of the
libraries or of a file that has changed is not used.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ..core.config import MODEL_BACKENDS, Config, ModelConfig
from ..infra.documents import (
    SHA256,
    DocumentError,
    anything,
    array,
    check_fields,
    choice,
    named,
    number,
    read_json,
    text,
)
from ..infra.errors import UserError
from ..infra.files import path_text, sha256_of, write_atomic
from ..infra.installing import shipped
from ..infra.provenance import device
from ..planning import decoding_config, generator_spec
from ..runtime.model_file import weights_sha256
from ..runtime.network import backends_of
from .inputs.channel import Level
from .system_checks import nvidia

LIBRARIES = ("onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "torch")
RECORDS = array(
    {
        "used_for": named(anything),
        "machine": named(text()),
        "file": text(),
        "sha256": SHA256,
        "backend": choice(*MODEL_BACKENDS),
        "full_ms": number(0.0),
    }
)
Record = dict[str, Any]


def records_file() -> Path:
    return Path.home() / ".cache" / "reflectdrive" / "backends.json"


def keep(config: Config, file: str, sha256: str, backend: str, full_ms: float) -> None:
    """Stores what was measured for a configuration, in place of what was measured on this machine before.

    Raises OSError.
    """
    own = {"used_for": _used_for(config), "machine": _machine()}
    try:
        others = [each for each in _read() if (each["used_for"], _hardware(each)) != (own["used_for"], _hardware(own))]
    except UserError:  # what cannot be read is written again
        others = []
    record = {**own, "file": file, "sha256": sha256, "backend": backend, "full_ms": round(full_ms, 3)}
    records_file().parent.mkdir(parents=True, exist_ok=True)
    write_atomic(records_file(), (json.dumps([*others, record], indent=1) + "\n").encode())


def with_measured_backend(config: Config) -> tuple[Config, Level, str]:
    """The configuration with the file and the backend that were measured, and a sentence on it for the diagnostics.

    The same configuration where a backend is set, the planner has no network or nothing was measured, and then no
    sentence; or where the record does not fit this machine.
    """
    if config.model.backend != "auto" or generator_spec(config).network is None:
        return config, Level.OK, ""
    try:
        record = _record(_used_for(config))
        model = config.model if record is None else _model(config.model, record)
    except (OSError, UserError) as fault:
        reason = f"{path_text(str(fault.filename))}: {fault.strerror}" if isinstance(fault, OSError) else fault
        return config, Level.WARN, f"the measured backend is not used, {reason}: run reflectdrive doctor --measure"
    if record is None:
        return config, Level.OK, ""
    note = f"measured backend: {record['backend']}, a full step in {record['full_ms']:.1f} ms, {path_text(model.file)}"
    return replace(config, model=model), Level.OK, note


def _record(used_for: Record) -> Record | None:
    """Of this machine; None where nothing was measured. Raises UserError where only another machine was measured."""
    records = [each for each in _read() if each["used_for"] == used_for]
    here = _machine() if records else {}
    for each in records:
        if each["machine"] == here:
            return each
    for each in records:
        name = next(name for name in here if each["machine"].get(name) != here[name])
        raise UserError(f"it was measured with {name} {each['machine'].get(name, 'unknown')}, here is {here[name]}")
    return None


def _model(model: ModelConfig, record: Record) -> ModelConfig:
    """Raises OSError, and UserError for a file that is no longer the measured one."""
    file, backend = Path(record["file"]), record["backend"]
    if sha256_of(file) != record["sha256"]:
        raise UserError(f"{path_text(file)} has changed")
    measured = model if file == shipped(model.file).absolute() else replace(model, file=str(file))
    measured = replace(measured, sha256=record["sha256"])
    if weights_sha256(measured) != record["used_for"]["weights_sha256"]:
        raise UserError(f"{path_text(file)} has other weights")
    # the first choice of auto stays auto, which takes the next backend where an engine is missing
    return measured if backends_of(file, model)[0] == backend else replace(measured, backend=backend)


def _read() -> list[Record]:
    """Raises OSError, and UserError for a file that holds something else."""
    try:
        content = read_json(records_file())
        check_fields(content, RECORDS)
    except FileNotFoundError:
        return []
    except DocumentError as fault:
        raise UserError(f"{path_text(records_file())} {fault}") from None
    return list(content)


def _used_for(config: Config) -> Record:
    """What decides which backend is the fastest, and which of them can run; as JSON has it."""
    model: ModelConfig = config.model
    content = {
        "weights_sha256": weights_sha256(model),
        "planner": config.planner,
        "decoding": asdict(decoding_config(config)),
        "device": model.device,
        "threads": model.threads,
    }
    return dict(json.loads(json.dumps(content)))


def _machine() -> dict[str, str]:
    machine = {"processor": device(), "GPU": nvidia().detail}
    for library in LIBRARIES:
        try:
            machine[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            machine[library] = "none"
    return machine


def _hardware(record: Record) -> tuple[str, str]:
    return record["machine"].get("processor", ""), record["machine"].get("GPU", "")

"""The key of a run: a hash of every setting that decides its result, defaults included.

Equal keys mean equal settings, whichever version wrote them: a changed default gives a new key to
exactly those runs that rely on it. `SCHEMA` stands for what settings cannot express.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from secateurs_lab.study.fields import CheckedSettings

SCHEMA = 1
"""Increased when equal settings begin to mean another result: every run then has another key, and
counts as new in the stores that hold it.
"""

OURS = ("secateurs.", "secateurs_lab.")


def key_of(run: Any) -> str:
    """Sixteen hexadecimal digits that name a run."""
    hashed = full_settings(run)
    # The location of data does not affect a result; a method's starting network is the run's
    # parent.
    del hashed["data"]["root"]
    hashed["method"].pop("after", None)
    # A user's objects are identified by content, since a changed function may keep its name.
    if run.method.trainer is not None:
        from secateurs_lab.study.fingerprint import fingerprint_of_values

        hashed["method"]["own"] = fingerprint_of_values(run.method.trainer)
    if run.data.make is not None or run.model.make is not None:
        from secateurs_lab.study.fingerprint import fingerprint, image_shape

        if run.data.make is not None:
            hashed["data"]["own"] = fingerprint(run.data.make)
        if run.model.make is not None:
            hashed["model"]["own"] = fingerprint(run.model.make, image_shape(run.data))
    # 64 bits: among a million runs, two share a key with a probability of about 3 in 100 million.
    return hashlib.sha256(canonical({"schema": SCHEMA, **hashed}).encode()).hexdigest()[:16]


def full_settings(run: Any) -> dict[str, Any]:
    """Every setting as plain values, defaults too, and the runs it needs by their keys.

    A needed run's key stands for all of its settings in turn.
    """
    shown = {name: _plain(getattr(run, name)) for name in _SETTINGS}
    # Newer than the keys of many stores, so it is left out if nothing is held out.
    if shown["data"]["held_out"] is None:
        del shown["data"]["held_out"]
    needed = {"parent": run.parent, "rewind": run.rewind}
    return {**shown, **{name: other and other.key for name, other in needed.items()}}


_SETTINGS = ("data", "model", "method", "train", "certify", "seed", "compression")


def canonical(value: Any) -> str:
    """JSON with sorted keys: equal values give equal text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def _plain(value: Any) -> Any:
    """Settings as JSON values; integers as integers."""
    if isinstance(value, float):
        # 10 and 10.0 are the same setting. Beyond 2^53 a float does not determine an integer.
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, CheckedSettings):
        kind = getattr(type(value), "kind", "")
        counted = (e.name for e in fields(value) if e.name not in value.silent)  # type: ignore[arg-type]
        named = {name: _plain(getattr(value, name)) for name in counted}
        return {"kind": kind, **named} if kind else named
    if type(value).__module__.startswith(OURS):
        return str(value)
    # A user's value, as a text that is the same in every process: its name, and what it is.
    from secateurs_lab.study.fingerprint import fingerprint_of_values

    owner: Any = value if hasattr(value, "__qualname__") else type(value)
    name = f"{owner.__module__}.{owner.__qualname__}"
    return name if name.startswith(OURS) else f"{name} ({fingerprint_of_values(value)})"

"""The name of a run: a hash of its settings that differ from the first released defaults.

A setting that is at its value in `FIRST` is left out. `FIRST` never changes: a new field comes in
with its default, and a default that is changed later keeps its old value here, so that no run of
any store is renamed.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

FIRST: Mapping[str, Mapping[str, Any]] = {
    "Run": {
        "seed": 0,
        "compression": None,
        "parent": None,
        "rewind": None,
        "certify": None,
    },
    "Net": {"init": "kaiming-normal", "options": {}},
    "Data": {"train": None, "test": None},
    "Certify": {"images": 8, "radius": 1 / 255},
    "Training": {
        "length": "20ep",
        "batch": 128,
        "lr": 0.1,
        "optimizer": "sgd",
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0,
        "schedule": "cosine",
        "warmup": "0it",
        "decay_at": ["80ep", "120ep"],
        "decay_by": 0.1,
        "augment": False,
        "drop_last": False,
        "precision": "float32",
        "evaluate_every": 1,
    },
    "Dense": {"until": None},
    "Prune": {
        "score": "magnitude",
        "rounds": 1,
        "schedule": None,
        "scope": "global",
        "pattern": "unstructured",
        "how": "topk",
        "where": None,
        "floor": 1,
        "convention": "paper",
        "options": {},
        "examples": 256,
        "rewind": None,
    },
    "Imp": {
        "score": "magnitude",
        "rounds": 1,
        "schedule": None,
        "scope": "global",
        "pattern": "unstructured",
        "how": "topk",
        "where": None,
        "floor": 1,
        "convention": "paper",
        "options": {},
        "examples": 256,
        "rewind": "0it",
        "per_round": 0.2,
    },
    "Gradual": {
        "score": "magnitude",
        "rounds": 1,
        "schedule": None,
        "scope": "global",
        "pattern": "unstructured",
        "how": "topk",
        "where": None,
        "floor": 1,
        "convention": "paper",
        "options": {},
        "examples": 256,
        "rewind": None,
        "begin": "0it",
        "end": None,
        "every": None,
    },
    "Dwf": {
        "strength": 5e-4,
        "target": False,
        "depth": 3,
        "init": "dwf-as-printed",  # what "dwf" meant in the first stores
        "strength_schedule": "constant",
        "decoupled": False,
        "sigma": None,
        "match_variance": False,
        "groups": None,
        "shared": 1,
        "lean": False,
        "freeze": None,
        "threshold": None,
    },
    "L1": {"strength": 1e-4, "threshold": 1.1920929e-07},
    "PathPenalty": {"strength": 1e-2, "q": 1.0},
}
"""What is left out of a key, by class and field."""


SILENT = {
    "Run": {"key"},
    "Data": {"root", "make"},
    "Net": {"make"},
    "": {"label", "train", "after"},
}
"""Fields that are never part of a key: they do not decide a result, or are there in resolved
form already.
"""


def key_of(run: Any) -> str:
    """Sixteen hexadecimal digits that name a run."""
    # 64 bits: of a million runs, two share a name with
    # a chance of about 3 in 100 million.
    return hashlib.sha256(canonical(settings_of(run)).encode()).hexdigest()[:16]


def settings_of(run: Any) -> dict[str, Any]:
    """The settings that the key is made of: what differs from `FIRST`, the runs it needs by
    their keys.
    """
    kept = _changed(run)
    for name in ("parent", "rewind"):
        if getattr(run, name) is not None:
            # A needed run enters by its key, which stands
            # for all of its settings in turn.
            kept[name] = getattr(run, name).key
    return kept


def full_settings(run: Any) -> dict[str, Any]:
    """Every setting, defaults too, as plain values: what a row tells."""
    shown = {
        name: _plain(getattr(run, name), whole=True)
        for name in ("data", "model", "method", "train", "certify")
    }
    needed = {
        name: getattr(run, name).key if getattr(run, name) else None
        for name in ("parent", "rewind")
    }
    return {**shown, "seed": run.seed, "compression": run.compression, **needed}


def canonical(value: Any) -> str:
    """JSON with sorted keys: equal values give equal text."""
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def _changed(value: Any) -> dict[str, Any]:
    first, silent = (
        FIRST[type(value).__name__],
        # Methods have no line of their own there: the last one holds for all of them.
        SILENT.get(type(value).__name__, SILENT[""]),
    )
    plain = {
        entry.name: _plain(getattr(value, entry.name))
        for entry in fields(value)
        if (entry.name not in silent and entry.name not in ("parent", "rewind"))
        or _own_rewind(value, entry.name)
    }
    kept = {
        name: entry
        for name, entry in plain.items()
        if name not in first or _differs(entry, first[name])
    }
    kind = getattr(type(value), "kind", "")
    # What a user makes is known by what it is: a changed function may keep its name.
    own = fingerprint(value) if getattr(value, "make", None) is not None else None
    return {
        **({"kind": kind} if kind else {}),
        **kept,
        **({"own": own} if own else {}),
    }


def _own_rewind(value: Any, name: str) -> bool:
    # A method's `rewind` is a point in time and
    # decides the result; a run's is another run.
    return name == "rewind" and isinstance(getattr(value, name), str | None)


def _differs(value: Any, first: Any) -> bool:
    """1 and 1.0 are one setting; True and 1 are not."""
    return isinstance(value, bool) is not isinstance(first, bool) or value != first


def _plain(value: Any, *, whole: bool = False) -> Any:
    """Settings as JSON has them; whole numbers as whole numbers."""
    if isinstance(value, float):
        # 10 and 10.0 are one setting. Beyond 2^53 a
        # float does not name one whole number.
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, whole=whole) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, whole=whole) for entry in value]
    if hasattr(value, "__dataclass_fields__") and type(value).__name__ in FIRST:
        return _every(value) if whole else _changed(value)
    return described(value)


def _every(value: Any) -> dict[str, Any]:
    kind = getattr(type(value), "kind", "")
    named = {"kind": kind} if kind else {}
    skipped = {"make", "train", "label"} if kind else {"make"}
    shown = {
        e.name: _plain(getattr(value, e.name), whole=True)
        for e in fields(value)
        if e.name not in skipped
    }
    return {**named, **shown}


def described(value: Any) -> str:
    """A value of the user's own, in words that are the same in every process."""
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return (
        str(value)
        # Other people's objects may print their
        # address, which differs in every process.
        if type(value).__module__.startswith("secateurs")
        else type(value).__qualname__
    )


def fingerprint(value: Any) -> str:
    """What a user's own network or data is recognised by: see `study.settings.identity`."""
    from secateurs.study.own import of

    return of(value.make)

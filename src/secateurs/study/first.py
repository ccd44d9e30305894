"""The settings that a key leaves out: the first released defaults, and what decides no result."""

from collections.abc import Mapping
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

# ruff: noqa
"""Imports every module alone-first in one process per room, and all in a row."""

import importlib, pkgutil, sys, traceback
import secateurs

bad = 0
for info in pkgutil.walk_packages(secateurs.__path__, "secateurs."):
    if info.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(info.name)
    except ImportError as e:
        if any(
            x in str(e)
            for x in ("No module named 'ray'", "lightning", "transformers")
        ):
            continue
        bad += 1
        print(info.name, repr(e)[:300])
    except Exception as e:
        bad += 1
        print(info.name)
        traceback.print_exc(limit=-3)
for n in secateurs.__all__:
    getattr(secateurs, n)
print("bad", bad)

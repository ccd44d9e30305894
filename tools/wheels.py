"""What the wheels of `dist` hold: sizes, licence, types, and no file that is too large.

Command: `make dist` runs it after building.
"""

import sys
import zipfile
from pathlib import Path

MEGABYTE = 10**6
# The size of a wheel, and that of the largest file in it.
LIMITS = {"secateurs": (1.5, 1.0), "secateurs_lab": (1.0, 1.0)}


def problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel; nothing, where it may be published."""
    package = wheel.name.split("-")[0]
    whole, each = (round(limit * MEGABYTE) for limit in LIMITS[package])
    found = []
    if wheel.stat().st_size > whole:
        found.append(f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {whole:,}")
    with zipfile.ZipFile(wheel) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    found += [
        f"{wheel.name}: {name} has {size:,} bytes" for name, size in sizes.items() if size > each
    ]
    licences = [name for name in sizes if name.endswith(".dist-info/licenses/LICENSE")]
    if not licences:
        found.append(f"{wheel.name} has no licence")
    if f"{package}/py.typed" not in sizes:
        found.append(f"{wheel.name} has no py.typed")
    strangers = {name.split("/")[0] for name in sizes if ".dist-info/" not in name} - {package}
    if strangers:
        found.append(f"{wheel.name} brings {', '.join(sorted(strangers))}")
    largest = max(sizes, key=lambda name: sizes[name])
    print(
        f"{wheel.name}: {wheel.stat().st_size:,} bytes, {len(sizes)} files, the largest"
        f" {largest} with {sizes[largest]:,}"
    )
    return found


def main(folder: Path) -> None:
    """Check every wheel of a folder; one of each package must be there."""
    wheels = sorted(folder.glob("*.whl"))
    found = [problem for wheel in wheels for problem in problems(wheel)]
    missing = LIMITS.keys() - {wheel.name.split("-")[0] for wheel in wheels}
    found += [f"no wheel of {package}" for package in sorted(missing)]
    if found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

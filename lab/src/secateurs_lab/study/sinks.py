"""Sinks: the finished runs written for other tools as well, TensorBoard and Weights & Biases
(offline).
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from secateurs.base.foreign import one_line
from secateurs.base.registry import Registry
from secateurs.errors import MissingExtra
from secateurs_lab.study.artefacts import link_error
from secateurs_lab.study.config import Watcher
from secateurs_lab.study.database import Row
from secateurs_lab.study.export import flat
from secateurs_lab.study.store import Store

SINKS: Registry[Callable[[Path], Watcher]] = Registry("sink")
"""By name: a folder in, a watcher out."""


def sink_of(name: str, folder: Path) -> Watcher:
    """The sink of this name, writing into the folder of the store."""
    return SINKS[name](folder)


class _Sink:
    """Writes each run when it has ended, from its row.

    A list of the written runs is kept with them. A sink that joins a study later, and one whose
    driver was killed before it could write, catch up from the store.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.store, self.folder = folder, folder / name
        self.listed = self.folder / "written.txt"

    def begin(self, rows: list[Row]) -> None:
        """Write runs that have ended and are not written yet; these rows come without their
        details.
        """
        known = self._written()
        ended = [row for row in rows if row.ended and _line(row) not in known]
        if not ended:
            return
        with Store.open(self.store) as opened:
            for row in ended:
                self.ended(opened.row(row.key))

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """Nothing is written until a run has ended."""

    def ended(self, row: Row) -> None:
        """Write the run, then list it: a partly written run is not listed."""
        # Neither written nor deleted through a link.
        for path in (self.folder, self.listed, self.folder / _place(row)):
            if path.is_symlink():
                raise link_error(path)
        self.write(row)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.listed.open("a", encoding="utf-8") as file:
            file.write(f"{_line(row)}\n")

    def write(self, row: Row) -> None:
        """Write the run."""
        raise NotImplementedError

    def _written(self) -> set[str]:
        if not self.listed.exists():
            return set()
        return set(self.listed.read_text(encoding="utf-8").splitlines())


def _line(row: Row) -> str:
    """An identifier of this end of the run, since a failed run may be tried again."""
    return f"{row.key} {row.state}"


def _name(row: Row) -> str:
    """The name of a run in these tools: its method, compression or λ, seed and key."""
    asked = f" {row.asked:g}x" if row.asked else ""
    strength = f" lambda {row.strength:g}" if row.strength and not row.asked else ""
    return one_line(f"{row.label}{asked}{strength} seed {row.seed} {row.key[:8]}")


def _place(row: Row) -> str:
    """The same as the name of a folder."""
    # A slash in a label would create another folder.
    return _name(row).replace("/", "-")


@SINKS.register("tensorboard")
class TensorBoard(_Sink):
    """Event files in STORE/tensorboard, one folder per run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra.of("tensorboard", extra="sinks", by="secateurs-lab") from None
        super().__init__(folder, "tensorboard")
        self.writer = SummaryWriter

    def write(self, row: Row) -> None:
        """The curves, and the final figures as scalars at step 0."""
        place = self.folder / _place(row)
        # Points of an earlier attempt would be drawn into the same curve.
        shutil.rmtree(place, ignore_errors=True)
        with self.writer(str(place)) as out:
            for point in row.history:
                for name in CURVES:
                    value = getattr(point, name)
                    if value is not None:
                        out.add_scalar(name, value, point.iteration)
            for name, value in row.metrics.items():
                out.add_scalar(f"final/{name}", value, 0)


@SINKS.register("wandb")
class Wandb(_Sink):
    """Offline runs in STORE/wandb: nothing is sent; `wandb sync` sends them if you wish."""

    def __init__(self, folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtra.of("wandb", extra="sinks", by="secateurs-lab") from None
        super().__init__(folder, "wandb")
        self.wandb = wandb

    def write(self, row: Row) -> None:
        """One offline run."""
        run = self.wandb.init(
            mode="offline", dir=str(self.store), name=_name(row), id=row.key,
            reinit=True, config=flat(row.settings),
            # It would write banners into the live table, and watch a screen that it does not own.
            settings=self.wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        for point in row.history:
            curves = {name: getattr(point, name) for name in CURVES}
            run.log(
                {name: value for name, value in curves.items() if value is not None},
                step=point.iteration,
            )
        run.summary.update({"state": row.state, **row.metrics})
        run.finish()


CURVES = (
    "loss",
    "test_loss",
    "test_accuracy",
    "learning_rate",
    "sparsity",
    "strength",
    "misalignment",
)

"""Steps that are not taken because a gradient is not finite: reported, counted, or raised."""

from dataclasses import dataclass, field

from secateurs.errors import TrainingError
from secateurs.optim.factorized.gradients import Found, _log, whole
from secateurs.optim.factorized.members import Members, Names

LONG = (20, 200, 2000, 20_000)
"""Skipped steps in a row that are worth a word: a loss scale that is found out skips a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A step that was not taken, and the parameters whose gradient was not finite."""

    step: int
    parameters: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Skips:
    """The steps that were not taken, and what is done about the next one: "skip" it or "raise"."""

    nonfinite: str = "skip"
    steps: list[Skipped] = field(default_factory=list)
    in_a_row: int = 0
    """Steps skipped since the last one taken."""

    def skip(self, members: Members, found: Found) -> None:
        """Report (or raise, as asked for) that this step is not taken."""
        names = members.names()
        skipped = Skipped(step=members.taken, parameters=_broken(names, found))
        listed = ", ".join(skipped.parameters)
        if self.nonfinite == "raise":
            raise TrainingError(
                f"the gradient of {listed} is not finite at step {skipped.step}."
            )
        # A run whose weights are broken would skip every step to come, quietly, to its
        # end.
        whole(members, names)
        # One line for the first, none for the next: a loss scaler skips steps as a
        # matter of course.
        if not self.steps:
            text = "step %d skipped, gradient not finite: %s (see .skipped)"
            _log.warning(text, skipped.step, listed)
        # A skipped step is not counted, so the same number means that none was taken in
        # between.
        again = self.steps and self.steps[-1].step == skipped.step
        self.in_a_row = self.in_a_row + 1 if again else 1
        self.steps.append(skipped)
        if self.in_a_row in LONG:
            self._say_again(skipped, found)

    def _say_again(self, skipped: Skipped, found: Found) -> None:
        _log.warning(
            "%d steps in a row skipped at step %d, gradients not finite: %s; weights go up to %.2g."
            " A run that has diverged does not come back: start again with a smaller lr.",
            self.in_a_row,
            skipped.step,
            ", ".join(skipped.parameters),
            max(float(p.detach().abs().max()) for _, p, _ in found),
        )


def _broken(names: Names, found: Found) -> tuple[str, ...]:
    return tuple(names[p] for _, p, grad in found if not bool(grad.isfinite().all()))

"""What a run is told about its sparsity, so that no model ends dense without a word.

Future learning rates are unknown, so the first forecast assumes that the current one stays. From
then on every step adds the logarithm by which it has shrunk a dead weight to "shrunk" of its group,
one number that is saved and resumed with the optimizer. Each quarter of the run is then forecast
from what has really been applied.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from secateurs.optim.factorized.factors.maths import Rule
from secateurs.optim.factorized.members import Members
from secateurs.optim.factorized.run import RunLength
from secateurs.optim.factorized.strength.forecast import Forecast, shrinkage
from secateurs.optim.factorized.strength.now import rules as rules_of
from secateurs.optim.factorized.strength.worst import least_hopeful

_log = logging.getLogger("secateurs.optim")


@dataclass(slots=True, kw_only=True)
class SparsityWatch:
    """Follows one run and remembers what it has said, so that nothing is said twice."""

    forecast: Forecast | None = None
    told: bool = False
    """Whether the last thing said of sparsity was that it will not be reached."""
    closed: bool = False
    """Whether it has been said at the end."""

    def begin(self, members: Members, length: RunLength) -> None:
        """At the first step: say that λ is too small, if the current rate, kept, cannot do.

        A scheduler may yet raise the rate, and a warm-up from 0 does: then the first quarter is
        waited for.
        """
        if members.taken or not length.steps or length.control is not None:
            return
        # Invalid rates are reported by rules(); a forecast from them would only confuse.
        rules_of(members, length)
        worst = least_hopeful(members, length)
        if worst is None:
            return
        group, self.forecast = worst
        rate = float(group["lr"])
        if not self.forecast.reaches:
            # "initial_lr" is what a scheduler leaves in a group: then the present rate
            # says little.
            self.told = "initial_lr" not in group and rate > 0
            level = logging.WARNING if self.told else logging.INFO
            sentence = self.forecast.sentence
            _log.log(level, "if the learning rate stays at %g: %s", rate, sentence)

    def follow(
        self, members: Members, length: RunLength, rules: Sequence[Rule]
    ) -> None:
        """After a step: add what it applied, and forecast anew at each quarter and at the end."""
        # Every step of every run comes here, so the loop does as little as it can.
        for group, rule in zip(members.groups, rules, strict=True):
            if rule.decay and "shrunk" in group and members.shrinks(group):
                group["shrunk"] += shrinkage(
                    rule.decay, group["depth"], rule.lr, rule.momentum, rule.decoupled
                )
        steps, taken = length.steps, members.taken
        if (
            length.control is None
            and steps
            and taken <= steps
            # True once in every quarter, whether or not 4 divides the number of steps.
            and 4 * taken % steps < 4
        ):
            self._review(members, length, ended=taken == steps)

    def collapsing(
        self, members: Members, length: RunLength, threshold: float
    ) -> None:
        """Before a collapse: say that no weight was brought to the threshold, unless it was said
        at the end.
        """
        taken = members.taken
        if (
            self.closed
            or length.control is not None
            or not taken
            or not threshold > 0
        ):
            return
        worst = least_hopeful(members, length, steps=taken, threshold=threshold)
        if worst is not None and not worst[1].reaches:
            self.closed = True
            _log.warning(
                "collapsed before dead weights came down to it: %s", worst[1].sentence
            )

    def _review(self, members: Members, length: RunLength, *, ended: bool) -> None:
        worst = least_hopeful(members, length)
        if worst is None:
            return
        self.forecast = worst[1]
        if not self.forecast.reaches and (ended or not self.told):
            _log.warning(self.forecast.sentence)
        self.told = not self.forecast.reaches
        self.closed = self.closed or (ended and self.told)

"""The least hopeful forecast of all groups of an optimizer."""

from secateurs.optim.factorized.members import Group, Members
from secateurs.optim.factorized.run import RunLength
from secateurs.optim.factorized.strength.forecast import Forecast, forecast


def least_hopeful(
    members: Members, length: RunLength, *, steps: int | None = None, **options: float
) -> tuple[Group, Forecast] | None:
    """The least hopeful forecast of all groups with a penalty.

    It assumes the current rates for the steps to come; with `steps`, it looks only at those taken.
    """
    found = [
        (group, _forecast(group, members.taken, length, steps, options))
        for group in members.groups
        if "shrunk" in group
        and members.shrinks(group)
        and (group["strength"] or group["shrunk"])
    ]
    return max(found, key=lambda pair: pair[1].smallest, default=None)


def _forecast(
    group: Group,
    taken: int,
    length: RunLength,
    steps: int | None,
    options: dict[str, float],
) -> Forecast:
    return forecast(
        # Schedules may round to just below 0.
        strength=max(0.0, group["strength"]),
        steps=steps or length.steps or 1,
        lr=max(0.0, float(group["lr"])) if steps is None else 0.0,
        momentum=float(group.get("momentum", 0.0)),
        schedule=length.schedule if steps is None else None,
        decoupled=bool(group["decoupled"]),
        taken=taken,
        shrunk=max(0.0, group["shrunk"]),
        **options,
    )

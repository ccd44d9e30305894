"""The row of a run that has not begun."""

from secateurs.study.keeping.row import Row
from secateurs.study.key import full_settings
from secateurs.study.runs import Run


def waiting(run: Run) -> Row:
    """What is known of a run beforehand."""
    return Row(
        key=run.key,
        label=run.method.title,
        kind=run.method.kind,
        data=run.data.name,
        model=run.model.name,
        seed=run.seed,
        asked=run.compression,
        strength=getattr(run.method, "strength", None),
        # Trained only up to the rewinding point: a step on the way of other runs.
        hidden=getattr(run.method, "until", None) is not None,
        settings=full_settings(run),
    )

"""Collecting everything that is wrong, to say it once."""

from collections.abc import Callable, Sequence

from secateurs.errors import ArgumentError, SecateursError


def problems_of(*checks: Callable[[], object]) -> list[SecateursError]:
    """Run every check and keep what they raise."""
    found = []
    for check in checks:
        try:
            check()
        except SecateursError as error:
            found.append(error)
    return found


def refuse(what: str, problems: Sequence[SecateursError]) -> None:
    """Raise all problems as one error, if there are any."""
    if problems:
        raise one_error(what, problems) from (
            problems[0] if len(problems) == 1 else None
        )


def one_error(what: str, problems: Sequence[SecateursError]) -> SecateursError:
    """All problems as one error: of their own kind if they share it, else an `ArgumentError`."""
    # Whoever catches a PatternError still does when three patterns misfit at once.
    kinds = {type(problem) for problem in problems}
    kind = kinds.pop() if len(kinds) == 1 else ArgumentError
    if len(problems) == 1:
        return kind(f"{what}: {problems[0]}")
    told = " ".join(
        f"({number}) {problem}" for number, problem in enumerate(problems, start=1)
    )
    return kind(f"{what}, {len(problems)} problems: {told}")

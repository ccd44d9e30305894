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
    """Raise all problems as one error: of their own kind if they share it, else an
    `ArgumentError`.
    """
    if not problems:
        return
    kinds = {type(problem) for problem in problems}
    kind = kinds.pop() if len(kinds) == 1 else ArgumentError
    if len(problems) == 1:
        raise kind(f"{what}: {problems[0]}") from problems[0]
    told = " ".join(f"({number}) {problem}" for number, problem in enumerate(problems, start=1))
    raise kind(f"{what}, {len(problems)} problems: {told}")

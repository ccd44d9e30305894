"""The look of a page and what it does; both are hashed in the policy of the page."""

from importlib.resources import files

from secateurs.report.figures.drawing import DARK, INK, LIGHT, PAPER


def _colours(palette: tuple[str, ...]) -> str:
    return "".join(f"--c{place}:{colour};" for place, colour in enumerate(palette))


def _read(name: str) -> str:
    # importlib.resources also reads a package that lies in an archive; a path beside
    # this file would not.
    return files("secateurs.report").joinpath(name).read_text(encoding="utf-8")


_LIGHT = (
    f"--ink:{INK[0]};--paper:{INK[1]};--line:#d5d5d5;--soft:#f3f3f3;{_colours(LIGHT)}"
)
_DARK = (
    f"--ink:{PAPER[0]};--paper:{PAPER[1]};--line:#444;--soft:#242424;{_colours(DARK)}"
)

# The switch of the page wins over the setting of the system, in both directions.
STYLE = (
    f":root{{{_LIGHT}}}\n"
    f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_DARK}}}}}\n"
    f":root[data-theme=dark]{{{_DARK}}}\n"
    + "".join(f".c{place}{{color:var(--c{place})}}" for place in range(len(LIGHT)))
    + "\n"
    + _read("page.css")
)

SCRIPT = _read("page.js")

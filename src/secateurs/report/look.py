"""An HTML file that works offline and lets no request out: its look, its script, its policy.

Both are hashed in the policy, so that nothing else can run.
"""

import base64
import hashlib
from html import escape
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


def document(title: str, body: str) -> str:
    """A whole page around this body, which is HTML already; the title is text."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        '<header><button type="button" id="theme" hidden>light or dark</button></header>'
        f"<main><h1>{escape(title)}</h1>{body}</main>"
        f'<div id="tip" role="status" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )


def _policy() -> str:
    """No request leaves the page, and no script runs but the one it was written with."""
    script, style = (_hash(text) for text in (SCRIPT, STYLE))
    # 'none' comes first: whatever is not named after it
    # (images, requests, frames) is refused.
    return f"default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"

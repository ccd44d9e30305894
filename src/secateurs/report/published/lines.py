"""Figures in print as dotted lines, beside those of ours that are the same method."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from secateurs.report.figures.axis import number
from secateurs.report.published.read import SHIPPED, Published
from secateurs.report.series import Dot, Line
from secateurs.study.keeping.row import Row


def printed_lines(
    figures: Iterable[Published],
    *,
    model: str,
    data: str,
    ours: Mapping[str, int],
    alike: Mapping[str, str],
) -> tuple[list[Line], dict[str, list[Published]]]:
    """Dotted lines for this network and data, and the figures behind each.

    A method that we ran, too, takes our colour; the others wait to be switched on. `ours` has the
    colours by label, `alike` our labels by the paper's name of the method.
    """
    found: dict[str, list[Published]] = defaultdict(list)
    for figure in figures:
        if figure.model in ("", model) and figure.data in ("", data):
            found[figure.method].append(figure)
    lines, named = [], {}
    for place, (method, points) in enumerate(found.items()):
        label = alike.get(method)
        source = points[0].source
        name = f"{method} ({source})" if source else method
        named[name] = points
        lines.append(
            Line(
                name=name,
                dots=tuple(_dot(p) for p in sorted(points, key=_compression)),
                # What only papers have takes the colours after
                # ours, so that ours never change.
                colour=ours.get(label or "", len(ours) + place),
                printed=True,
                shipped=source in SHIPPED,
                # Shipped figures of methods that nobody ran here wait in the legend;
                # what a user names is always shown.
                hidden=label is None and source in SHIPPED,
            )
        )
    return lines, named


def names_in_print(rows: Sequence[Row]) -> dict[str, str]:
    """Our labels by the name that the papers give to the same method."""
    found: dict[str, str] = {}
    for row in rows:
        name = _name_in_print(row.settings.get("method", {}))
        if name:
            # Several labels of a study can be one method in
            # print: the first takes its colour.
            found.setdefault(name, row.label)
    return found


def _name_in_print(method: Mapping[str, object]) -> str:
    if method.get("kind") == "dwf":
        return f"dwf-depth-{method.get('depth')}"
    if method.get("kind") != "prune" or method.get("how", "topk") != "topk":
        return ""
    score = str(method.get("score"))
    if score == "magnitude" and method.get("scope") == "global":
        return "gmp"
    # SNIP and SynFlow are printed as pruning at initialization: applied to a trained
    # network they are other methods.
    fresh = method.get("after") == "init"
    return score if fresh and score in ("snip", "synflow", "random") else ""


def _compression(figure: Published) -> float:
    return figure.compression


def _dot(figure: Published) -> Dot:
    x, y, half = figure.compression, figure.accuracy, figure.spread
    text = f"{figure.method}, {figure.source or 'printed'}: {y:.2f} % at {number(x)}×"
    text += f" (± {half:.2f})" if half else ""
    return Dot(x=x, y=y, low=y - half, high=y + half, text=text)

"""Draws the pictures of docs/paths.md: `python docs/pictures/draw.py` rewrites the SVG files beside it."""

from pathlib import Path

HERE = Path(__file__).parent
INK, FAINT, STRONG, SECOND, SOFT = "#1f2430", "#b8bfca", "#c2410c", "#1d4ed8", "#fde9dc"

# One network in three pictures: two inputs, three hidden neurons with relu, one output.
COLUMNS = {"x1": (90, 90), "x2": (90, 210), "h1": (300, 50), "h2": (300, 150), "h3": (300, 250), "y": (510, 150)}
WEIGHTS = {
    ("x1", "h1"): 2.0,
    ("x1", "h2"): -1.0,
    ("x2", "h2"): 3.0,
    ("x2", "h3"): 0.5,
    ("h1", "y"): 0.5,
    ("h2", "y"): -2.0,
    ("h3", "y"): 1.0,
}


def text(x, y, words, *, size=15, color=INK, anchor="middle", weight="normal"):
    style = f'font-family="sans-serif" font-size="{size}" font-weight="{weight}" fill="{color}" text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{words}</text>'


def line(a, b, *, color=FAINT, width=1.5, dash=""):
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f"M{a[0]:g} {a[1]:g}L{b[0]:g} {b[1]:g}"
    return f'<path d="{ends}" stroke="{color}" stroke-width="{width:g}" fill="none"{dashed}/>'


def neuron(name, label, *, color=INK, fill="#ffffff"):
    x, y = COLUMNS[name]
    circle = f'<circle cx="{x}" cy="{y}" r="22" fill="{fill}" stroke="{color}" stroke-width="2"/>'
    return circle + text(x, y + 5, label, color=color)


def on_edge(a, b, words, *, color=INK, at=0.36):
    (x0, y0), (x1, y1) = COLUMNS[a], COLUMNS[b]
    x, y = x0 + at * (x1 - x0), y0 + at * (y1 - y0)
    box = f'<rect x="{x - 18:g}" y="{y - 11:g}" width="36" height="20" rx="4" fill="#ffffff"/>'
    return box + text(x, y + 4, words, size=14, color=color)


def picture(name, width, height, *parts, title):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    back = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    (HERE / f"{name}.svg").write_text("\n".join([head, back, *parts, "</svg>"]) + "\n", encoding="utf-8")


def network(strong=(), numbers=None):
    """Edges, then their numbers, so that no line crosses a number."""
    edges, labels = [], []
    for (a, b), w in WEIGHTS.items():
        chosen = (a, b) in strong
        edges.append(line(COLUMNS[a], COLUMNS[b], color=STRONG if chosen else FAINT, width=4 if chosen else 1.5))
        words = f"{w:g}".replace("-", "−") if numbers is None else numbers[a, b]
        labels.append(on_edge(a, b, words, color=STRONG if chosen else INK))
    return [*edges, *labels]


def path():
    chosen = {("x2", "h2"), ("h2", "y")}
    names = {"x1": "x₁", "x2": "x₂", "h1": "h₁", "h2": "h₂", "h3": "h₃", "y": "y"}
    nodes = [
        neuron(
            n,
            label,
            color=STRONG if n in {"x2", "h2", "y"} else INK,
            fill=SOFT if n in {"x2", "h2", "y"} else "#ffffff",
        )
        for n, label in names.items()
    ]
    words = [
        text(300, 310, "the path x₂ → h₂ → y carries Φ = 3 · (−2) = −6", size=17, color=STRONG, weight="bold"),
        text(300, 335, "y is the sum of Φ · x over the paths whose neurons are all active", size=15),
    ]
    picture("path", 600, 355, *network(chosen), *nodes, *words, title="A path and its weight product")


def norm():
    mass = {"x1": "1", "x2": "1", "h1": "2", "h2": "4", "h3": "½", "y": "9½"}
    numbers = {edge: f"{abs(w):g}" for edge, w in WEIGHTS.items()}
    nodes = [
        neuron(n, m, color=SECOND if n == "y" else INK, fill="#e6edfd" if n == "y" else "#ffffff")
        for n, m in mass.items()
    ]
    words = [
        text(300, 310, "feed ones, make every weight positive, drop the relus:", size=15),
        text(300, 335, "what arrives is ‖Φ‖₁ = 2·½ + 4·2 + ½·1 = 9½", size=17, color=SECOND, weight="bold"),
    ]
    picture("norm", 600, 355, *network((), numbers), *nodes, *words, title="The path norm by one forward pass")


def cost():
    chosen = {("x2", "h2")}
    numbers = {edge: f"{abs(w):g}" for edge, w in WEIGHTS.items()}
    mass = {"x1": "1", "x2": "1", "h1": "2", "h2": "4", "h3": "½", "y": "9½"}
    nodes = [neuron(n, m, color=STRONG if n in {"x2", "h2"} else INK) for n, m in mass.items()]
    words = [
        text(78, 252, "flows in: 1", size=14, color=STRONG),
        text(322, 195, "flows out: 2", size=14, color=STRONG, anchor="start"),
        text(300, 310, "cost = flow in · |w| · flow out = 1 · 3 · 2 = 6", size=17, color=STRONG, weight="bold"),
        text(300, 335, "without this weight ‖Φ‖₁ falls from 9½ to 3½; one backward pass gives all costs", size=14),
    ]
    picture("cost", 600, 355, *network(chosen, numbers), *nodes, *words, title="The cost of one weight")


def curve(points, color, width=3.0):
    steps = "L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M{steps}" stroke="{color}" stroke-width="{width:g}" fill="none" stroke-linejoin="round"/>'


def certificate():
    f = [(60, 210), (170, 180), (250, 100), (350, 120), (450, 60), (540, 75)]
    g = [(60, 195), (170, 172), (250, 118), (350, 104), (450, 84), (540, 66)]
    low, high, reach = 200, 400, 34
    inner = [(200, 150), (250, 100), (350, 120), (400, 90)]
    upper, lower = [(x, y - reach) for x, y in inner], [(x, y + reach) for x, y in reversed(inner)]
    band = "L".join(f"{x:g} {y:g}" for x, y in [*upper, *lower])
    parts = [
        f'<path d="M{band}Z" fill="{SOFT}" stroke="{STRONG}" stroke-width="1.5" stroke-dasharray="5 4"/>',
        line((low, 30), (low, 250), dash="3 4", color=INK),
        line((high, 30), (high, 250), dash="3 4", color=INK),
        line((45, 250), (560, 250), color=INK),
        curve(f, INK),
        curve(g, SECOND),
        line((250, 100), (250, 118), color=STRONG, width=4),
        text(118, 84, "found by search", size=14, color=STRONG),
        line((172, 86), (246, 108), color=STRONG, width=1.5),
        text(300, 272, "the ball |x − x₀| ≤ r", size=15),
        text(548, 55, "g", size=16, color=SECOND, weight="bold"),
        text(548, 92, "f", size=16, weight="bold"),
        text(408, 180, "certified band f ± bound", size=14, color=STRONG, anchor="start"),
        text(300, 310, "in the ball g stays inside the band: found ≤ truth ≤ bound", size=17, weight="bold"),
        text(300, 335, "tightness = bound / found; what lies beyond the ball is not spoken of", size=15),
    ]
    picture("certificate", 600, 355, *parts, title="A certificate on a ball")


if __name__ == "__main__":
    for draw in (path, norm, cost, certificate):
        draw()

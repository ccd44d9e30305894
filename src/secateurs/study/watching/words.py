"""Figures in words."""


def clock(seconds: float) -> str:
    """A duration in words.

    >>> clock(42), clock(600), clock(7500)
    ('42 s', '10 min', '2 h 5 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return (
        f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
    )

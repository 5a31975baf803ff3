"""Plots as SVG: curves, bars and histograms. Pure: numbers come in, text goes out.

The reports need no other kinds, and a page with these needs no library, neither to make nor to view
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 520, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 30
COLOURS = ("#2f7ed8", "#e4812b", "#2a9d6f", "#b5499a", "#8a6bd1", "#c0392b", "#7f8c8d", "#b8960c")
TICKS = 4
SERIES_MAX = 8
WHOLE_LABELS_MAX = 5  # bars that have room for both ends of what they count
_NOTHING = (
    f"<text x='{(WIDTH + LEFT - RIGHT) // 2}' y='{HEIGHT // 2 - BOTTOM // 2}' "
    "text-anchor='middle'>none</text>"
)


def short(value: float) -> str:
    """A short text for a number: 1234567 → "1.23 M"."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == ' k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def moment(time_ms: int) -> str:
    if not time_ms:
        return "–"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _frame(top: float, inner: list[str]) -> str:
    lines = []
    for tick in range(TICKS + 1):
        y = _y(top * tick / TICKS, top)
        lines.append(
            f"<line class='{'axis' if not tick else 'grid'}' x1='{LEFT}' x2='{WIDTH - RIGHT}' "
            f"y1='{y:.1f}' y2='{y:.1f}'/><text x='{LEFT - 6}' y='{y + 4:.1f}' "
            f"text-anchor='end'>{short(top * tick / TICKS)}</text>"
        )
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' preserveAspectRatio='xMidYMid meet'>"
        f"{''.join(lines)}{''.join(inner)}</svg>"
    )


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top if top else 0)


def nice_top(values: Sequence[float]) -> float:
    """A round number not below any value; TICKS for small whole numbers, so ticks are whole."""
    most = max(values, default=0)
    if most <= TICKS and all(value == int(value) for value in values):
        return float(TICKS)
    power = 1.0
    while power * 10 <= most:
        power *= 10
    while power > most:
        power /= 10
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= most)


def curves(times_ms: Sequence[int], series: dict[str, Sequence[float]]) -> str:
    """Lines over common times; series beyond SERIES_MAX are summed up as "others"."""
    shown = dict(list(series.items())[:SERIES_MAX])
    rest = list(series.values())[SERIES_MAX:]
    if rest:
        shown = dict(list(shown.items())[: SERIES_MAX - 1])
        left = list(series.values())[SERIES_MAX - 1 :]
        shown["others"] = [sum(column) for column in zip(*left, strict=True)]
    points = {name: list(zip(times_ms, values, strict=True)) for name, values in shown.items()}
    return lines(points)


def lines(points: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Lines over time, each series with times of its own."""
    every = [when for one in points.values() for when, _ in one]
    low, high = min(every, default=0), max(every, default=1)
    span = max(high - low, 1)
    top = nice_top([value for one in points.values() for _, value in one])
    inner = []
    for number, (name, one) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            (LEFT + (WIDTH - LEFT - RIGHT) * (when - low) / span, _y(value, top))
            for when, value in one
        ]
        title = f"<title>{escape(name)}</title>"
        if len(places) == 1:
            x, y = places[0]
            inner.append(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'>{title}</circle>"
            )
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        inner.append(
            f"<polyline fill='none' stroke='{colour}' stroke-width='1.8' points='{path}'>"
            f"{title}</polyline>"
        )
    inner += _times(low, high) if every else [_NOTHING]
    return _frame(top, inner) + legend(list(points))


def _times(low: int, high: int) -> list[str]:
    form = "%H:%M:%S" if high - low < 600_000 else "%H:%M"
    form = "%d %b %H:%M" if high - low > 86_400_000 else form
    out = []
    for place, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        if place and high == low:
            continue
        when = datetime.fromtimestamp((low + (high - low) * place) / 1000, UTC)
        x = LEFT + (WIDTH - LEFT - RIGHT) * place
        out.append(
            f"<text x='{x:.1f}' y='{HEIGHT - 10}' text-anchor='{anchor}'>"
            f"{when.strftime(form)}</text>"
        )
    return out


def legend(names: list[str]) -> str:
    if len(names) < 2:
        return ""
    words = "".join(
        f"<span style='white-space:nowrap;margin-right:12px'><span style='display:inline-block;"
        f"width:10px;height:10px;border-radius:2px;margin-right:5px;"
        f"background:{COLOURS[place % len(COLOURS)]}'></span>{escape(name)}</span>"
        for place, name in enumerate(names)
    )
    return f"<p>{words}</p>"


def bars(labels: Sequence[str], values: Sequence[float], every_label: bool = True) -> str:
    """A bar for each value; some labels are left out where they would not fit."""
    top = nice_top(values)
    width = (WIDTH - LEFT - RIGHT) / max(len(values), 1)
    room = max(1, -(-len(labels) * 44 // (WIDTH - LEFT - RIGHT))) if every_label else 1
    inner = []
    for place, (label, value) in enumerate(zip(labels, values, strict=True)):
        x, y = LEFT + place * width, _y(value, top)
        inner.append(
            f"<rect x='{x + width * 0.08:.1f}' y='{y:.1f}' width='{width * 0.84:.1f}' "
            f"height='{max(HEIGHT - BOTTOM - y, 0):.1f}' fill='{COLOURS[0]}' rx='1.5'>"
            f"<title>{escape(label)}: {value:,.6g}</title></rect>"
        )
        if place % room == 0:
            inner.append(
                f"<text x='{x + width / 2:.1f}' y='{HEIGHT - 10}' text-anchor='middle'>"
                f"{escape(label[:14])}</text>"
            )
    return _frame(top, inner if any(values) else [*inner, _NOTHING])


def histogram(buckets: Sequence[Sequence[float]], unit: str = "") -> str:
    """Bars for buckets [from, to, how often], which must follow each other without holes."""
    whole = len(buckets) <= WHOLE_LABELS_MAX
    labels = [
        f"{short(low)}–{short(high - 1)}{unit}"
        if whole and high - low > 1
        else f"{short(low)}{unit}"
        for low, high, _ in buckets
    ]
    return bars(labels, [number for _, _, number in buckets])

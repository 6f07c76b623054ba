"""Draw the pictures of the documents: docs/pictures/*.svg of the text beside them.

    scripts/draw_pictures.py            # all pictures anew
    scripts/draw_pictures.py --record   # first run the demonstration, and keep what was seen

``NAME.txt`` is a diagram, ``recording.json`` a run of ``bftrainer demo``, which becomes a moving
picture at the speed of the run. All are light or dark as the reader's system is.

Lines of a diagram, whose last field names what it shows in the code (``module:Name``):

    kind: boxes | sequence                         and title:, about:, size: WIDTH HEIGHT (boxes)
    box ID X Y WIDTH | title | text | code         group X Y WIDTH HEIGHT | title
    band X Y WIDTH HEIGHT | title | code           arrow FROM TO | text | code
    actor ID | title | text | code                 state ACTOR | text | code
    step FROM TO | text | code
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from _bench.targets import ROOT

PICTURES: Final = ROOT / "docs" / "pictures"
RECORDING: Final = PICTURES / "recording.json"
MARGIN, BOX_HEIGHT, HEAD_HEIGHT = 20, 62, 40
STEP, STATE_WIDTH, ACTOR_WIDTH = 44, 190, 180  # of sequences
PANEL_WIDTH = 880
ROW, LEFT, HOLD_S = 34, 52, 5.0  # of the recording
TRAINER_CLASSES: Final = ("a", "b", "c")
# Okabe and Ito's palette, as in timeline.png: told apart by everybody.
STYLE: Final = """
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1f2328}
.t{font-size:15px;font-weight:600}.h{font-size:17px;font-weight:600}.s{fill:#59636e}
.k{font:11px ui-monospace,SFMono-Regular,Menlo,monospace;fill:#59636e}
.m{text-anchor:middle}.e,.k{paint-order:stroke;stroke:#ffffff;stroke-width:3px}.bg{fill:#ffffff}.n{fill:#f6f8fa;stroke:#59636e}
.g{fill:none;stroke:#8c959f;stroke-dasharray:5 4}.d{fill:#ddf4ff;stroke:#0969da}
.l{stroke:#8c959f;stroke-dasharray:3 4}.w{stroke:#1f2328;stroke-width:1.5;fill:none}.p{fill:#1f2328}
.a{fill:#0072b2}.b{fill:#e69f00}.c{fill:#009e73}.o{fill:#b8b8b8}.i{fill:none;stroke:#d1d9e0}
.f{opacity:.35}.x{fill:#f3d6d6}.now{stroke:#cf222e;stroke-width:2}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.s,.k{fill:#9198a1}.e,.k{stroke:#0d1117}.bg{fill:#0d1117}.n{fill:#161b22;stroke:#9198a1}
.d{fill:#0c2d4d;stroke:#4493f8}.g,.l{stroke:#656c76}.w{stroke:#e6edf3}.p{fill:#e6edf3}
.o{fill:#656c76}.i{stroke:#3d444d}.x{fill:#5d3434}.a{fill:#56b4e9}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a diagram: its words, its texts, and what it shows in the code."""

    kind: str
    words: tuple[str, ...]
    texts: tuple[str, ...]
    code: str  # module:Name; "": no code

    @property
    def tip(self) -> str:
        """Its name in the code, shown where one points."""
        return f"<title>{escape(self.code)}</title>" if self.code else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagram:
    """A diagram as it is written."""

    about: Mapping[str, str]  # kind, title, about, size
    lines: tuple[Line, ...]

    def of(self, *kinds: str) -> list[Line]:
        """Return the lines of these kinds."""
        return [line for line in self.lines if line.kind in kinds]


def read(path: Path) -> Diagram:
    """Read a diagram.

    Raises:
        ValueError: a line is none.
    """
    about, lines = dict[str, str](), list[Line]()
    for text in path.read_text(encoding="utf-8").splitlines():
        if not text.strip() or text.startswith("#"):
            continue
        name, colon, value = text.partition(": ")
        if colon and name in ("kind", "title", "about", "size"):
            about[name] = value
            continue
        words, *texts = (part.strip() for part in text.split("|"))
        kind, *words_left = words.split()
        if kind not in ("box", "group", "band", "arrow", "actor", "state", "step"):
            raise ValueError(f"{path}: {text}")
        has_code = bool(texts) and ":" in texts[-1] and " " not in texts[-1]
        code = texts.pop() if has_code else ""
        lines.append(Line(kind=kind, words=tuple(words_left), texts=tuple(texts), code=code))
    return Diagram(about=about, lines=tuple(lines))


def draw(diagram: Diagram) -> str:
    """Return a diagram as SVG."""
    parts, width, height = (_boxes if diagram.about["kind"] == "boxes" else _sequence)(diagram)
    return _page(diagram.about["title"], diagram.about["about"], width, height, parts)


def _page(title: str, about: str, width: float, height: float, parts: Sequence[str]) -> str:
    marker = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path class="p" d="M0 0L8 4L0 8z"/></marker>'
    )
    head = f'<text class="h" x="{MARGIN}" y="28">{escape(title)}</text>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-labelledby="title about">'
    )
    return "\n".join(
        (
            svg,
            f'<title id="title">{escape(title)}</title><desc id="about">{escape(about)}</desc>',
            f"<style>{STYLE}</style><defs>{marker}</defs>",
            f'<rect class="bg" width="{width:g}" height="{height:g}" rx="6"/>{head}',
            *parts,
            "</svg>\n",
        )
    )


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "m") -> str:
    styles = " ".join(part for part in (anchor, style) if part)
    return f'<text class="{styles}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _frame(line: Line, style: str, box: tuple[float, float, float, float]) -> str:
    x, y, width, height = box
    return (
        f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'rx="6">{line.tip}</rect>'
    )


def _boxes(diagram: Diagram) -> tuple[list[str], float, float]:
    width, height = map(float, diagram.about["size"].split())
    parts = []
    for line in diagram.of("group", "band"):
        x, y, wide, high = map(float, line.words)
        parts.append(_frame(line, "g" if line.kind == "group" else "d", (x, y, wide, high)))
        low = y + 18 if line.kind == "group" else y + high - 8
        parts.append(_text(x + 12, low, line.texts[0], "s", ""))
    places = {}
    for line in diagram.of("box"):
        name, *numbers = line.words
        x, y, wide = map(float, numbers)
        places[name] = (x, y, wide, float(BOX_HEIGHT))
        parts.append(_frame(line, "n", places[name]))
        parts.append(_text(x + wide / 2, y + 26, line.texts[0], "t"))
        parts.append(_text(x + wide / 2, y + 47, line.texts[1], "s"))
    parts += [_arrow(places[line.words[0]], places[line.words[1]], line) for line in
              diagram.of("arrow")]  # fmt: skip
    return parts, width, height


def _arrow(tail: Sequence[float], head: Sequence[float], line: Line) -> str:
    """Return an arrow between the nearest sides of two boxes, and its text."""
    (tail_x, tail_y, tail_w, tail_h), (head_x, head_y, head_w, head_h) = tail, head
    is_beside = max(head_x - tail_x - tail_w, tail_x - head_x - head_w) > 0
    if not is_beside:  # one is above the other
        left_x, right = max(tail_x, head_x), min(tail_x + tail_w, head_x + head_w)
        middle = (left_x + right) / 2
        x1, x2 = (middle, middle) if left_x < right else (tail_x + tail_w / 2, head_x + head_w / 2)
        y1, y2 = (tail_y + tail_h, head_y) if tail_y < head_y else (tail_y, head_y + head_h)
    else:
        x1, x2 = (tail_x + tail_w, head_x) if tail_x < head_x else (tail_x, head_x + head_w)
        y1, y2 = tail_y + tail_h / 2, head_y + head_h / 2
        shift = 8 if tail_x < head_x else -8  # to and fro side by side
        y1, y2 = y1 + shift, y2 + shift
    path = f'<path class="w" marker-end="url(#tip)" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'
    if not line.texts or not line.texts[0]:
        return path
    is_upright = abs(x2 - x1) < abs(y2 - y1)
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    label = _text(x + 8, y + 4, line.texts[0], "s", "") if is_upright else _text(
        x, y - 7, line.texts[0], "s")  # fmt: skip
    return path + label


def _sequence(diagram: Diagram) -> tuple[list[str], float, float]:
    actors = diagram.of("actor")
    width = float(PANEL_WIDTH)
    gap = (width - 2 * MARGIN - ACTOR_WIDTH) / (len(actors) - 1)
    at = {line.words[0]: MARGIN + ACTOR_WIDTH / 2 + gap * i for i, line in enumerate(actors)}
    top = HEAD_HEIGHT + BOX_HEIGHT + 12.0
    moves = diagram.of("step", "state")
    height = top + STEP * len(moves) + MARGIN
    parts = []
    for line in actors:
        x = at[line.words[0]]
        parts.append(f'<path class="l" d="M{x:g} {top - 12:g}V{height - 10:g}"/>')
        parts.append(_frame(line, "n", (x - ACTOR_WIDTH / 2, HEAD_HEIGHT, ACTOR_WIDTH, BOX_HEIGHT)))
        parts.append(_text(x, HEAD_HEIGHT + 26, line.texts[0], "t"))
        parts.append(_text(x, HEAD_HEIGHT + 47, line.texts[1], "s"))
    for number, line in enumerate(moves):
        y = top + STEP * number + STEP / 2
        if line.kind == "state":
            x = at[line.words[0]]
            left_x = min(max(4.0, x - STATE_WIDTH / 2), width - STATE_WIDTH - 4)
            parts.append(_frame(line, "d", (left_x, y - 15, STATE_WIDTH, 30)))
            parts.append(_text(left_x + STATE_WIDTH / 2, y + 5, line.texts[0]))
            continue
        x1, x2 = at[line.words[0]], at[line.words[1]]
        parts.append(f'<path class="w" marker-end="url(#tip)" d="M{x1:g} {y:g}H{x2:g}">'
                     f"{line.tip}</path>")  # fmt: skip
        parts.append(_text((x1 + x2) / 2, y - 6, line.texts[0], "e"))
        parts.append(_text((x1 + x2) / 2, y + 13, line.code.partition(":")[2], "k"))
    return parts, width, height


def draw_recording(run: Mapping[str, Any]) -> str:
    """Return a recorded run as a moving picture that takes as long as the run did."""
    nodes = list(dict.fromkeys(span["node"] for span in run["spans"]))
    length_s = max(span["end_s"] for span in run["spans"])
    per_s = (PANEL_WIDTH - LEFT - MARGIN) / length_s
    top, bottom = 78, 78 + ROW * len(nodes)
    parts = []
    names = dict(zip(run["trainers"], TRAINER_CLASSES, strict=True))
    for x, (style, text) in zip(
        range(LEFT, PANEL_WIDTH, 118),
        [*((style, name) for name, style in names.items()), ("a f", "starting"),
         ("o", "ordinary job"), ("i", "idle")], strict=False,
    ):  # fmt: skip
        parts.append(f'<rect class="{style}" x="{x}" y="44" width="16" height="14" rx="2"/>')
        parts.append(_text(x + 22, 56, text, "s", ""))
    for row, node in enumerate(nodes):
        y = top + ROW * row
        parts.append(_text(MARGIN, y + 19, node, "s", ""))
        parts.append(f'<rect class="i" x="{LEFT}" y="{y}" width="{length_s * per_s:.1f}" '
                     f'height="{ROW - 6}" rx="2"/>')  # fmt: skip
    bars = list(_bars(run, nodes, names, per_s, top))
    step_s = 5 if length_s < 45 else 10
    parts += [
        _text(LEFT + second * per_s, bottom + 16, f"{second} s", "k")
        for second in range(0, int(length_s) + 1, step_s)
    ]
    parts.append(_text(MARGIN, bottom + 40, run["says"], "", ""))
    total_s, wide = length_s + HOLD_S, length_s * per_s
    share = 100.0 * length_s / total_s
    # A cover in the colour of the page shrinks from the left; without movement all is seen.
    moving = (
        f"<style>.cover{{transform:scaleX(0);transform-origin:{LEFT + wide:.0f}px 0}}"
        f".now{{transform:translateX({wide:.0f}px)}}"
        "@keyframes cover{0%{transform:scaleX(1)}"
        f"{share:.1f}%,100%{{transform:scaleX(0)}}}}"
        "@keyframes now{0%{transform:translateX(0)}"
        f"{share:.1f}%,100%{{transform:translateX({wide:.0f}px)}}}}"
        "@media (prefers-reduced-motion:no-preference){"
        f".cover{{animation:cover {total_s:.1f}s linear infinite}}"
        f".now{{animation:now {total_s:.1f}s linear infinite}}}}</style>"
    )
    bars.append(f'<rect class="bg cover" x="{LEFT}" y="{top}" width="{wide:.0f}" '
                f'height="{bottom - top}"/>')  # fmt: skip
    line = f'<path class="now" d="M{LEFT} {top - 4}V{bottom}"/>'
    about = "Nodes over time: three trainers grow, shrink and move between ordinary jobs."
    return _page(run["title"], about, PANEL_WIDTH, bottom + 54, [moving, *bars, *parts, line])


def _bars(
    run: Mapping[str, Any], nodes: Sequence[str], names: Mapping[str, str], per_s: float, top: int
) -> Iterator[str]:
    for span in run["spans"]:
        style = {"ordinary": "o", "away": "o", "held": "x"}.get(span["use"], "")
        if span["trainer"]:
            style = names[span["trainer"]] + (" f" if span["use"] == "starting" else "")
        if style:
            x, y = LEFT + span["start_s"] * per_s, top + ROW * nodes.index(span["node"])
            width = (span["end_s"] - span["start_s"]) * per_s
            yield (f'<rect class="{style}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
                   f'height="{ROW - 6}" rx="2"/>')  # fmt: skip


def record() -> dict[str, Any]:
    """Run the demonstration, and return what its nodes did."""
    from bftrainer.lab.demo.page import RunPage  # noqa: PLC0415
    from bftrainer.lab.demo.run import run_demo  # noqa: PLC0415 - only a recording needs it
    from bftrainer.lab.demo.watch import Watch, sentences  # noqa: PLC0415

    looks: list[Watch] = []
    with tempfile.TemporaryDirectory(prefix="bft-record-") as out, RunPage(print) as page:
        summary = run_demo(Path(out), 6, looks.append, print, page)
    watch = looks[-1]
    names = {trainer.trainer_id: trainer.name for trainer in summary.trainers}
    spans = [
        {
            "node": span.node,
            "use": str(span.use),
            "trainer": names.get(span.trainer_id, ""),
            "start_s": round(span.start_s - watch.started_s, 2),
            "end_s": round(span.end_s - watch.started_s, 2),
        }
        for span in watch.timeline.spans()
    ]
    return {
        "title": f"bftrainer demo: three trainings between ordinary jobs on {summary.nodes} nodes",
        "says": sentences(summary)[2],
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}",
        "trainers": list(names.values()),
        "summary": asdict(summary)["node_seconds"],
        "spans": spans,
    }


def pictures() -> Iterator[tuple[Path, str]]:
    """Yield each picture's file and its text."""
    for source in sorted(PICTURES.glob("*.txt")):
        yield source.with_suffix(".svg"), draw(read(source))
    yield RECORDING.with_suffix(".svg"), draw_recording(json.loads(RECORDING.read_text("utf-8")))


def main() -> int:
    """Draw all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="run the demonstration first")
    if parser.parse_args().record:
        text = json.dumps(record(), indent=1, ensure_ascii=False) + "\n"
        RECORDING.write_text(text, encoding="utf-8")
    for path, text in pictures():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

// Curves of one trainer over time: small ones for the table, larger ones with their axes.

import { clock } from "./picture.js";

const SVG = "http://www.w3.org/2000/svg";
const SPARK = { width: 44, height: 16 }, CHART = { width: 320, height: 92, left: 46, bottom: 16, top: 6 };

function svg(kind, more, ...children) {
  const one = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(more)) one.setAttribute(name, value);
  one.append(...children);
  return one;
}

function extent(points, isFromZero) {
  let low = isFromZero ? 0 : Infinity, high = -Infinity;
  for (const [, value] of points) {
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (high === -Infinity) return [0, 1];
  return high > low ? [low, high] : [low - (isFromZero ? 0 : 1), high + 1];
}

// A path through [time, value]; sizes are steps: they hold until the next one. Where a value is null there is a gap.
function path(points, box, isFromZero, isStep) {
  const from_s = points[0][0], span_s = Math.max(1e-9, points.at(-1)[0] - from_s), [low, high] = extent(points, isFromZero);
  const x = (at_s) => (box.left + (box.width * (at_s - from_s)) / span_s).toFixed(1);
  const y = (value) => (box.top + box.height * (1 - (value - low) / (high - low))).toFixed(1);
  const after = (at_s, value) => (isStep ? `H${x(at_s)}V${y(value)}` : `L${x(at_s)} ${y(value)}`);
  const isKnown = (i) => i >= 0 && i < points.length && points[i][1] !== null;
  const first = (at_s, value, i) => `M${x(at_s)} ${y(value)}${isKnown(i + 1) ? "" : "h.01"}`; // one alone is a dot
  return points.map(([at_s, value], i) => (value === null ? "" : isKnown(i - 1) ? after(at_s, value) : first(at_s, value, i))).join("");
}

export function spark(points, isFromZero, isStep) {
  const one = svg("svg", { class: "spark", width: SPARK.width, height: SPARK.height, viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, "aria-hidden": "true" });
  const box = { left: 1, top: 2, width: SPARK.width - 2, height: SPARK.height - 4 };
  if (points.length > 1) one.append(svg("path", { d: path(points, box, isFromZero, isStep) }));
  return one;
}

// `tell` makes a text of a value.
export function chart(title, points, colour, tell, isFromZero, isStep) {
  const figure = document.createElement("figure"), caption = document.createElement("figcaption");
  caption.textContent = points.length ? `${title}: ${tell(points.at(-1)[1])}` : `${title}: nothing yet`;
  figure.append(caption);
  if (points.length < 2) return figure;
  const [low, high] = extent(points, isFromZero), { width, height, left, bottom, top } = CHART;
  const box = { left, top, width: width - left - 4, height: height - bottom - top };
  const label = (text, x, y, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);
  figure.append(svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} from ${clock(points[0][0])} to ${clock(points.at(-1)[0])}: at least ${tell(low)}, at most ${tell(high)}, last ${tell(points.at(-1)[1])}` },
    svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - 4}` }),
    label(tell(high), left - 4, top + 8, "end"), label(tell(low), left - 4, height - bottom, "end"),
    label(clock(points[0][0], false), left, height - 3, "start"), label(clock(points.at(-1)[0], false), width - 4, height - 3, "end"),
    svg("path", { class: "line", stroke: colour, d: path(points, box, isFromZero, isStep) })));
  return figure;
}

import { Picture, Uses, clock, colourOf, fillOf, lasting, short } from "./picture.js";

const SPANS = [[300, "5 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"], [0, "all"]];
const BYS = ["day", "user", "account"];
const SILENT_MS = 30000; // the daemon says something every 10 s
const MOST_ROWS = 200; // of trainers
const find = (id) => document.getElementById(id);
const saved = find("saved") && JSON.parse(find("saved").textContent); // of a file: there is no server to ask
const uses = new Uses(), picture = new Picture(find("picture"), find("scroller"), uses);
const state = { head: null, trainers: new Map(), parts: {}, by: "day", chosen: null, study: null, isLive: true };
let due = new Set(), timer = 0, heard = 0, stream = null;

// ---- making elements: text is never parsed, so names can hold anything --------------------

function make(kind, more = {}, ...children) {
  const { data, ...rest } = more;
  const one = Object.assign(document.createElement(kind), rest);
  for (const [name, value] of Object.entries(data || {})) one.dataset[name] = value;
  one.append(...children.filter((child) => child !== null && child !== undefined));
  return one;
}

// Rows out of sight are as they came there: all anew at each event are a quarter of a processor.
const sight = new IntersectionObserver((seen) => {
  for (const one of seen) one.target.isOut = !one.isIntersecting;
  draw("trainers");
}, { rootMargin: "100px" });

// A cell is a text, or [text, how to make its element]; the first one names the row. Only what differs is touched.
function table(target, heads, rows) {
  const named = heads.map((head) => head.replace(/^>/, ""));
  if (target.dataset.heads !== String(heads)) {
    target.className = "cards";
    target.dataset.heads = heads;
    target.replaceChildren(make("tr", {}, ...heads.map((text, i) => make("th", { scope: "col", className: text.startsWith(">") ? "num" : "" }, named[i]))));
  }
  while (target.rows.length > rows.length + 1) target.deleteRow(-1);
  rows.forEach((cells, r) => {
    let row = target.rows[r + 1];
    if (!row) {
      row = target.appendChild(make("tr", {}, ...heads.map((text, i) =>
        make("td", { className: text.startsWith(">") ? "num" : named[i] === "why" ? "why" : "", data: { name: named[i] } }))));
      if (target.id === "trainers") sight.observe(row);
    }
    if (row.isOut && row.cells[0].told === cells[0][0]) return;
    cells.forEach((cell, i) => {
      const [text, element] = Array.isArray(cell) ? cell : [cell ?? "–"], place = row.cells[i];
      if (place.told === text) return;
      place.told = text;
      place.replaceChildren(make("span", {}, element ? element() : text));
    });
  });
}

function swatch(use, trainer = "") {
  const one = make("canvas", { width: 44, height: 24, className: "chip" });
  const on = one.getContext("2d");
  on.fillStyle = fillOf(on, use, trainer, 2);
  on.fillRect(0, 0, 44, 24);
  return one;
}

function chip(trainer) {
  const one = make("span", { className: "chip" });
  one.style.background = colourOf(trainer);
  return one;
}

const number = (value, digits = 4) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits))));
const hours = (value) => (value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(2) : number(value, 2));
const percent = (part) => (part === null || part === undefined ? "–" : `${(100 * part).toFixed(1)}%`);

// ---- parts of the page --------------------------------------------------------------------

function drawHead() {
  const head = state.head;
  if (!head) return;
  const [held, requested, idle, total] = head.nodes;
  const rows = [
    ["nodes", `${held} held, ${requested} requested, ${idle} idle, ${total} in all`],
    ["batch system", `${head.system}${head.is_seen ? "" : ": the last poll failed"}`],
    ["decisions", `${head.decisions}, the last in ${head.decision_ms} ms`],
    ["rescales", head.rescales],
    ["given back", `${head.given_back} nodes before the batch system took them, ${head.preempted} taken`],
  ];
  if (head.requests) rows.push(["requests to it", `${head.requests[0]} of at most ${head.requests[1]} in the last minute`]);
  if (head.started_s) rows.push(["daemon since", new Date(1000 * head.started_s).toLocaleString()]);
  find("head").replaceChildren(...rows.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(text)))));
  find("notes").replaceChildren(...head.notes.map(([kind, text]) => make("li", {}, `${kind}: ${text}`)));
}

function drawTrainers() {
  const showsOver = find("over").checked || [...state.trainers.values()].every((one) => one.is_over);
  const all = [...state.trainers.values()].filter((one) => showsOver || !one.is_over);
  all.sort((a, b) => a.is_over - b.is_over || (b.nodes > 0) - (a.nodes > 0) || idOf(a) - idOf(b));
  const rows = all.slice(0, MOST_ROWS).map((one) => [
    [one.id, () => make("span", {}, chip(one.id), make("button", { type: "button", data: { trainer: one.id }, ariaLabel: `Explain ${one.id}` }, one.id))],
    one.name, one.account ? `${one.user} (${one.account})` : one.user, one.state,
    `${one.nodes}${one.planned === one.nodes ? "" : ` → ${one.planned}`} of ${one.limits.replace(":", " to ")}`,
    one.done === null ? `epoch ${one.epoch}` : [percent(one.done), () => make("span", {}, make("meter", { min: 0, max: 1, value: one.done, ariaLabel: "done" }), ` ${percent(one.done)}`)],
    lasting(one.left_s), number(one.rate), number(one.metric), one.why || (one.failed ? `last failure: ${one.failed}` : ""),
  ]);
  const focused = document.activeElement?.dataset?.trainer;
  table(find("trainers"), ["id", "name", "user", "state", ">nodes", "done", ">left", ">samples/s", ">metric", "why"], rows);
  if (focused) find("trainers").querySelector(`[data-trainer="${CSS.escape(focused)}"]`)?.focus();
  const others = state.head?.others ? `${state.head.others} of other users are not shown. ` : "";
  const more = all.length > MOST_ROWS ? `${all.length - MOST_ROWS} more are in 'bftrainer status'. ` : "";
  find("more").textContent = others + more + (all.length ? "" : "No trainers; submit one with 'bftrainer submit'.");
}

const idOf = (one) => parseInt(one.id.slice(1), 10) || 0;

function drawPicture() {
  const began = performance.now();
  if (picture.cursor?.isNow) picture.cursor.at_s = uses.now_s; // it stays at the newest
  picture.draw();
  const from_s = Math.max(picture.from_s, uses.since_s), sums = uses.sums(from_s, uses.now_s);
  const ours = ["training", "starting", "held", "leaving", "unreachable"].reduce((sum, use) => sum + (sums[use] || 0), 0);
  const had = ours + (sums.idle || 0) + (sums.reserve || 0);
  find("sum").textContent = had > 0
    ? `Of ${hours(had / 3600)} node-hours without ordinary jobs shown here, ${hours((sums.training || 0) / 3600)} trained (${percent(sums.training / had)}).`
    : "";
  picture.canvas.dataset.drawMs = (performance.now() - began).toFixed(1);
  if (picture.cursor) tellCursor();
}

function drawLegend() {
  const kinds = ["training", "starting", "held", "leaving", "unreachable", "reserve", "idle", "ordinary", "unavailable"];
  const words = { training: "training (a colour for each trainer)", ordinary: "ordinary jobs", reserve: "left to the queue", unavailable: "down or reserved", held: "held without a trainer" };
  find("legend").replaceChildren(...kinds.map((kind) => make("li", {}, swatch(kind, "t0"), words[kind] || kind)), make("li", {}, "paler after now: planned"));
}

function tellCursor() {
  const { node, at_s } = picture.cursor;
  if (node >= uses.rows.length) return;
  const name = uses.names[node];
  const described = (use, trainer) => `${use}${trainer ? ` ${trainer} ${state.trainers.get(trainer)?.name || ""}` : ""}`;
  let text;
  if (at_s > uses.now_s) {
    const next = (uses.planned[node] || []).find(([, , from_s, until_s]) => from_s <= at_s && (until_s === null || at_s <= until_s));
    text = next ? `planned: ${next[1] ? described("training", next[1]) : "an ordinary job"}${next[3] ? ` until ${clock(next[3])}` : ""}` : "nothing is planned";
  } else if (at_s < uses.since_s) {
    text = "not known";
  } else {
    const [[from_s, use, trainer], end_s] = uses.at(node, at_s);
    text = `${described(uses.uses[use], trainer)}, from ${clock(from_s)}${end_s ? ` to ${clock(end_s)}` : " on"}`;
  }
  find("under").textContent = `${name}, ${clock(at_s)}: ${text}`;
}

function drawHarm() {
  const harm = state.parts.harm;
  if (!harm) return;
  const left = harm.leavings.by_pilots;
  const rows = [
    ["promise", `${percent(harm.share_promised)} of nodes free within ${harm.limit_s} s: ${harm.is_kept ? "kept" : "broken"}`],
    ["hand-overs", `${harm.hand_overs} nodes to ${harm.jobs} jobs, ${percent(harm.share_within)} of the measured in time`],
    ["delay", `median ${number(harm.median_s, 3)} s, 95% within ${number(harm.p95_s, 3)} s, longest ${number(harm.max_s, 3)} s`],
    ["who ended pilots", `${harm.given_back} nodes given back, ${harm.preempted} preempted, ${harm.in_vain} released in vain`],
    ["scheduler cycles lost", `${harm.cycles_lost} jobs had to preempt and started a cycle later, ${number(harm.cycles_lost_s, 1)} s in all`],
    ["back-off", harm.back_off || "none"],
  ];
  rows.push(["nodes unusable soon after pilots", `${left.unusable} of ${left.left}; above ordinary jobs: ${percent(harm.leavings.excess)}`]);
  find("harm").replaceChildren(make("dl", {}, ...rows.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)))));
}

function drawHarvest() {
  const told = state.parts[`harvest by ${state.by}`];
  if (!told) return;
  const had = new Map(state.by === "day" ? (state.parts.days || []).map(([day, had_s, trained_s]) => [day, [hours(had_s / 3600), percent(trained_s / had_s)]]) : []);
  const rows = told.lines.map((one) => [one[state.by] || "–", hours(one.harvested_h), hours(one.warm_up_h), hours(one.idle_h), hours(one.redone_h), hours(one.given_back_h), String(one.pilots), ...(had.size ? had.get(one.day) || ["–", "–"] : [])]);
  table(find("harvest"), [state.by === "account" ? "project" : state.by, ">harvested, node-hours", ">starting", ">held idle", ">redone", ">time limit given back", ">pilots", ...(had.size ? [">without ordinary jobs", ">of it trained"] : [])], rows);
  find("had").textContent = had.size ? "Node-hours without ordinary jobs are counted while a daemon runs." : "";
}

function drawStudies() {
  const told = state.parts.studies;
  if (!told) return;
  find("h-studies").parentElement.hidden = !told.studies.length;
  const rows = told.studies.map((one) => [[one.study, () => make("button", { type: "button", data: { study: one.study } }, one.study)], String(one.trials), String(one.active), String(one.nodes)]);
  table(find("studies"), ["study", ">trials", ">active", ">nodes"], rows);
  if (state.study) explainStudy();
}

// ---- what is asked for ----------------------------------------------------------------------

// The other half of the cookie: kept by origin, where other ports of this host do not see it. A portal has one origin
// for all pages.
const KEY = `key of ${location.pathname}`;
const withKey = (path) => `${path}?key=${encodeURIComponent(localStorage.getItem(KEY) || "")}`;

async function ask(path) {
  if (saved) {
    const told = saved.answers[decodeURIComponent(path)];
    if (!told) throw new Error("This file does not have it.");
    return told;
  }
  const answer = await fetch(withKey(path));
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.error ? `${told.error.code}: ${told.error.cause} ${told.error.next_step}` : `no answer (${answer.status})`);
  return told;
}

async function explain() {
  const id = state.chosen, box = find("explain");
  box.hidden = !id;
  if (!id) return;
  const close = make("button", { type: "button", data: { close: "1" } }, "Close");
  try {
    const told = await ask(`explain/${encodeURIComponent(id)}`);
    if (state.chosen !== id) return;
    const one = state.trainers.get(id);
    const speeds = make("table");
    if (told.speeds.length) {
      table(speeds, [">nodes", ">samples/s", ">left", ">gain in samples"], told.speeds.map((speed) => [
        String(speed.size), number(speed.samples_per_s), lasting(speed.left_s),
        speed.size === told.planned_size ? "planned" : number(speed.change_samples, 3)]));
    }
    box.replaceChildren(
      make("h3", {}, `Why ${id}${one ? ` (${one.name})` : ""} is ${told.state} on ${told.observed_size} nodes; planned: ${told.planned_size} `, close),
      make("ul", {}, ...told.sentences.map((text) => make("li", {}, text))), speeds);
  } catch (problem) {
    box.replaceChildren(make("h3", {}, `${id} `, close), make("p", {}, problem.message));
  }
}

// Of the complete ones or else of those that have trained furthest, as in 'study best'.
function bestOf(trials) {
  const rank = (one) => [one.state === "failed", one.state === "finished" ? -Infinity : -one.samples, (one.tag.maximizes ? -1 : 1) * one.reports.at(-1).value, one.tag.number];
  const before = (a, b) => a.map((part, i) => part - b[i] || (part === b[i] ? 0 : part < b[i] ? -1 : 1)).find((difference) => difference) || 0;
  return trials.filter((one) => one.reports.length).sort((a, b) => before(rank(a), rank(b)))[0];
}

async function explainStudy() {
  const name = state.study;
  try {
    const told = await ask(`study/${encodeURIComponent(name)}`);
    const last = (one) => one.reports.at(-1);
    const best = bestOf(told.trials)?.tag.number;
    const rows = told.trials.map((one) => [`${one.tag.number}${one.tag.number === best ? " ★ best" : ""}`, short(one.tag.parameters, 200), one.waits_at_rung ? "waits at its rung" : one.state,
      String(one.nodes), number(one.budget), String(one.epoch), last(one) ? number(last(one).value) : "–", hours(one.node_s / 3600), one.reason]);
    table(find("trials"), ["trial", "parameters", "state", ">nodes", ">rung", ">epoch", ">value", ">node-hours", "why"], rows);
  } catch (problem) {
    table(find("trials"), ["trials"], [[problem.message]]);
  }
}

// ---- events -------------------------------------------------------------------------------

const DRAW = { head: drawHead, trainers: drawTrainers, picture: drawPicture, harm: drawHarm, harvest: drawHarvest, studies: drawStudies, explain };

function draw(...names) {
  for (const name of names) due.add(name);
  if (timer) return;
  timer = requestAnimationFrame(() => {
    const names = due;
    due = new Set();
    timer = 0;
    for (const name of names) DRAW[name]();
  });
}

function take(news) {
  const { timeline, planned, head, trainers, now_s, is_first, ...parts } = news;
  if (is_first) state.trainers.clear();
  if (timeline) uses.take(timeline);
  if (planned) uses.plan(planned);
  uses.now_s = Math.max(uses.now_s, now_s);
  draw("picture");
  if (head) {
    state.head = head;
    draw("head");
  }
  if (trainers) {
    for (const id of trainers.gone) state.trainers.delete(id);
    for (const one of trainers.rows) state.trainers.set(one.id, one);
    draw("trainers");
    if (trainers.rows.some((one) => one.id === state.chosen)) draw("explain");
  }
  for (const [name, part] of Object.entries(parts)) {
    state.parts[name] = part;
    draw(name === "days" || name.startsWith("harvest") ? "harvest" : name);
  }
}

function say(text, isAway = false) {
  find("link").textContent = text;
  find("link").classList.toggle("away", isAway);
}

function greet({ title, is_live }) {
  find("title").textContent = document.title = title;
  state.isLive = is_live;
}

function tell(news) {
  take(news);
  say(state.isLive ? `Live, ${clock(news.now_s)}` : `As it was at ${new Date(1000 * news.now_s).toLocaleString()}`);
}

function listen() {
  stream?.close();
  const mine = (stream = new EventSource(withKey("events")));
  const hear = (kind, act) => mine.addEventListener(kind, (event) => {
    heard = Date.now();
    act(JSON.parse(event.data));
  });
  hear("hello", greet);
  hear("news", tell);
  hear("away", ({ code, cause, next }) => say(`${code}: ${cause} ${next}`, true));
  mine.onerror = () => {
    say("The connection is lost; trying again …", true);
    if (mine.readyState === EventSource.CLOSED) setTimeout(begin, 1000);
  };
  const watch = setInterval(() => {
    if (mine.readyState === EventSource.CLOSED) return clearInterval(watch);
    if (state.isLive && Date.now() - heard > SILENT_MS) say(`Nothing was heard since ${new Date(heard).toLocaleTimeString()}; trying again …`, true);
  }, 5000);
}

async function begin() {
  const token = location.hash.slice(1);
  if (token && !find(token)) {
    history.replaceState(null, "", location.pathname);
    const answer = await fetch("enter", { method: "POST", body: token }).catch(() => null);
    if (answer?.ok) localStorage.setItem(KEY, await answer.text());
  }
  const known = await fetch(withKey("known")).catch(() => null);
  if (!known) return say("The connection is lost; trying again …", true), setTimeout(begin, 2000);
  if (known.status === 401) return say("This link was used already, or is of another run. Open the newest link that 'bftrainer web' printed.", true);
  if (!document.hidden) listen();
}

// A browser has six connections to a host: tabs that nobody sees leave theirs to others.
document.addEventListener("visibilitychange", () => {
  if (saved) return;
  if (document.hidden) stream?.close();
  else begin();
});

// ---- controls -----------------------------------------------------------------------------

function choice(target, values, isChosen, choose) {
  const buttons = values.map(([value, text]) => make("button", { type: "button", onclick: () => { choose(value); mark(); } }, text));
  const mark = () => buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(isChosen(values[i][0]))));
  target.replaceChildren(...buttons);
  mark();
}

choice(find("spans"), SPANS, (s) => s === picture.span_s, (s) => { picture.span_s = s; draw("picture"); });
choice(find("by"), BYS.map((by) => [by, by === "account" ? "project" : by]), (by) => by === state.by, (by) => { state.by = by; draw("harvest"); });
find("over").onchange = () => draw("trainers");
find("filter").oninput = ({ target }) => {
  const wanted = target.value.trim().toLowerCase();
  const meets = (text) => text.toLowerCase().includes(wanted);
  picture.choose(wanted && ((node) => {
    const trainer = uses.rows[node].at(-1)[2];
    return meets(uses.names[node]) || trainer.toLowerCase() === wanted || (trainer && meets(state.trainers.get(trainer)?.name || ""));
  }));
  draw("picture");
};
find("scroller").onscroll = () => draw("picture");
new ResizeObserver(() => draw("picture")).observe(find("scroller"));
matchMedia("(prefers-color-scheme: dark)").onchange = () => { picture.forget(); drawLegend(); draw("picture", "trainers"); };

picture.canvas.onpointermove = ({ offsetX, offsetY }) => {
  const row = picture.rowAt(offsetY);
  if (row === null || offsetX < picture.left) return;
  picture.cursor = { node: picture.order[row], at_s: picture.timeAt(offsetX) };
  draw("picture");
};
picture.canvas.onclick = () => {
  const { node, at_s } = picture.cursor || {};
  const trainer = node === undefined ? "" : uses.at(node, at_s)[0][2];
  if (trainer) choose(trainer);
};
picture.canvas.onkeydown = (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0] }[event.key];
  if (!step || !picture.order.length) return;
  event.preventDefault();
  const before = picture.cursor || { node: picture.order[0], at_s: uses.now_s };
  const row = Math.min(picture.order.length - 1, Math.max(0, picture.order.indexOf(before.node) + step[0]));
  const at_s = Math.min(picture.to_s, Math.max(picture.from_s, before.at_s + (step[1] * (picture.to_s - picture.from_s)) / 125));
  picture.cursor = { node: picture.order[row], at_s, isNow: at_s === uses.now_s };
  const top = row * picture.rowHeight, box = find("scroller"), room = picture.height - 110;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top > box.scrollTop + room) box.scrollTop = top - room;
  if (event.key === "Enter") picture.canvas.onclick();
  draw("picture");
};

function choose(trainer) {
  state.chosen = trainer;
  explain();
}

document.addEventListener("click", ({ target }) => {
  if (target.dataset?.trainer) choose(target.dataset.trainer);
  if (target.dataset?.close) choose(null);
  if (target.dataset?.study) {
    state.study = target.dataset.study;
    explainStudy();
  }
});

drawLegend();
if (saved) {
  greet(saved.hello);
  tell(saved.news);
} else {
  begin();
}

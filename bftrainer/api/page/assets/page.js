import { chart, spark } from "./curves.js";
import { Picture, Uses, clock, colourOf, fillOf, lasting, sharesOf, short } from "./picture.js";

const SPANS = [[300, "5 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"], [0, "all"]];
const BYS = ["day", "user", "account"];
const SILENT_MS = 30000; // the daemon says something every 10 s
const ROWS = 25; // of trainers at once: more are a page of theirs away
const find = (id) => document.getElementById(id);
const saved = find("saved") && JSON.parse(find("saved").textContent); // of a file: there is no server to ask
const uses = new Uses(), picture = new Picture(find("picture"), find("scroller"), uses);
const PRICE = "price of a node-hour";
const state = { head: null, trainers: new Map(), parts: {}, curves: new Map(), later: new Map(), by: "day", chosen: null, study: null, isLive: true, user: "", page: 0, isLogShown: false };
let due = new Set(), timer = 0, heard = 0, stream = null;

// ---- making elements: text is never parsed, so names can hold anything --------------------

function make(kind, more = {}, ...children) {
  const { data, ...rest } = more;
  const one = Object.assign(document.createElement(kind), rest);
  for (const [name, value] of Object.entries(data || {})) one.dataset[name] = value;
  one.append(...children.filter((child) => child !== null && child !== undefined));
  return one;
}

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
    }
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
  const on = one.getContext("2d"), parts = use === "training" && !trainer ? ["t0", "t1", "t2", "t3"] : [trainer]; // of several trainers
  parts.forEach((who, i) => {
    on.fillStyle = fillOf(on, use, who, 2);
    on.fillRect((44 * i) / parts.length, 0, 44 / parts.length, 24);
  });
  return one;
}

function chip(trainer) {
  const one = make("span", { className: "chip" });
  one.style.background = colourOf(trainer);
  return one;
}

const number = (value, digits = 4) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits))));
const sizeText = (size, each) => (each > 1 ? `${size} x ${each} GPUs` : `${size} ${each ? "GPU" : "node"}${size === 1 ? "" : "s"}`);
const counted = (count, noun, plural = `${noun}s`) => `${count} ${count === 1 ? noun : plural}`;
const countedNodes = (count, hasParts) => (hasParts ? counted(count, "node or part", "nodes or parts") : counted(count, "node")); // GPUs of one are a part of it
const hours = (value) => (value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(2) : number(value, 2));
const percent = (part) => (part === null || part === undefined ? "–" : `${(100 * part).toFixed(1)}%`);

// ---- parts of the page --------------------------------------------------------------------

function drawHead() {
  const head = state.head;
  if (!head) return;
  const [held, requested, idle, total] = head.nodes;
  const rows = [
    ["nodes", `${held} held, ${requested} requested, ${idle} idle, ${total} in all`],
    ...(head.gpus ? [["GPUs lent one by one", `${head.gpus[0]} held, ${head.gpus[1]} requested, ${head.gpus[2]} free, ${head.gpus[3]} in all`]] : []),
    ["batch system", `${head.system}${head.is_seen ? "" : ": the last poll failed"}`],
    ["decisions", `${head.decisions}, the last in ${head.decision_ms} ms`],
    ["rescales", head.rescales],
    ["given back", `${countedNodes(head.given_back, head.gpus)} before the batch system took them, ${head.preempted} taken`],
  ];
  if (head.requests) rows.push(["requests to it", `${head.requests[0]} of at most ${head.requests[1]} in the last minute`]);
  if (head.started_s) rows.push(["daemon since", new Date(1000 * head.started_s).toLocaleString()]);
  find("head").replaceChildren(...rows.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(text)))));
  find("notes").replaceChildren(...head.notes.map(([kind, text]) => make("li", {}, `${kind}: ${text}`)));
}

const isMine = (one) => one.user === state.user;
const isFailed = (one) => one.state === "failed" || one.is_failing;
const idOf = (one) => parseInt(one.id.slice(1), 10) || 0;

// Mine first; then those that train, that wait, that have ended.
function order(a, b) {
  return isMine(b) - isMine(a) || a.is_over - b.is_over || (b.nodes > 0) - (a.nodes > 0) || (a.is_over ? idOf(b) - idOf(a) : idOf(a) - idOf(b));
}

function drawHeadline() {
  const all = [...state.trainers.values()], open = all.filter((one) => !one.is_over), mine = open.filter(isMine);
  const count = (some, test) => some.filter(test).length;
  const shown = mine.length || !open.length ? mine : open, whose = shown === mine ? "Of your trainers" : "Of all trainers";
  const failed = count(all, (one) => isMine(one) && one.state === "failed"), trains = count(shown, (one) => one.nodes > 0);
  const nodes = shown.reduce((sum, one) => sum + one.nodes, 0), hasParts = shown.some((one) => one.nodes && one.limits.endsWith("GPUs"));
  const finished = count(all, (one) => isMine(one) && one.state === "finished");
  find("headline").textContent = !open.length && all.length ? `Nobody trains any more; of your trainers ${finished} finished, ${failed} failed.` : `${whose} ${trains} train${trains === 1 ? "s" : ""} on ${countedNodes(nodes, hasParts)}, ${shown.length - trains} wait${shown.length - trains === 1 ? "s" : ""}${failed ? `, ${failed} failed` : ""}.`;
}

const curveOf = (one, which) => state.curves.get(one.id)?.[which] || [];

function takeCurves(curves, metrics) {
  const of = (id) => state.curves.get(id) || state.curves.set(id, { metric: [], rate: [], size: [], loss: [], gpu: [] }).get(id);
  for (const [id, told] of Object.entries(curves)) {
    const mine = of(id), rows = (values) => told.at.map((at, i) => [told.from_s + at, values[i]]);
    for (const which of ["rate", "size", "loss", "gpu"]) mine[which] = [...(told.is_whole ? [] : mine[which]), ...rows(told[which])];
  }
  for (const [id, points] of Object.entries(metrics)) of(id).metric = points;
  draw("trainers");
  if (curves[state.chosen] || metrics[state.chosen]) draw("explain");
}

// The cell of a value with its curve; it is drawn anew when the curve has another point.
function withCurve(one, text, which, isStep) {
  const points = curveOf(one, which);
  return [`${text} ${points.length} ${points.at(-1)?.[0] ?? ""}`, () => make("span", {}, spark(points, which === "rate" || which === "size", isStep), ` ${text}`)];
}

// The mean over the samples of late; a script's own metric may be called loss, too.
const lossOf = (one) => (one.has_finite_loss ? number(one.loss) : "not finite");

// Node-hours as under Harvest, and what those in which it trained would have cost elsewhere.
function spent(one) {
  const line = state.parts["harvest by trainer"]?.lines.find((told) => told.trainer === one.id);
  if (!line) return "–";
  const price = parseFloat(find("price").value), kept = line.harvested_h - line.lost_h;
  return hours(line.harvested_h) + (price > 0 ? ` (${(kept * price).toFixed(2)} elsewhere)` : "");
}

// Answers about trainers that are asked once in a while; it is drawn again when one comes.
function later(path, every_ms) {
  const had = state.later.get(path);
  if (!had || (!saved && state.isLive && Date.now() - had.at_ms > every_ms)) {
    state.later.set(path, { at_ms: Date.now(), told: had?.told });
    ask(path).then((told) => {
      state.later.get(path).told = told;
      draw("trainers");
    }, () => {});
  }
  return had?.told;
}

function whyOf(one) {
  const text = one.why || (one.failed && !one.is_over ? `last failure: ${one.failed}` : "");
  if (isFailed(one)) {
    const last = later(`log/${one.id}`, 60000)?.lines.at(-1) || "";
    return [`${text} ${last}`, () => make("span", { className: "bad" }, text, last ? make("code", {}, last) : null, make("button", { type: "button", data: { trainer: one.id, log: "1" } }, "log"))];
  }
  if (text || one.is_over || one.nodes) return text;
  return (isMine(one) && later(`explain/${one.id}`, 15000)?.sentences[0]) || "";
}

function drawTrainers() {
  drawHeadline();
  const everyone = [...state.trainers.values()];
  const showsOver = find("over").checked || everyone.every((one) => one.is_over);
  const wanted = find("wanted").value.trim().toLowerCase();
  const all = everyone.filter((one) => (showsOver || !one.is_over || (one.state === "failed" && isMine(one))) &&
    (!wanted || [one.id, one.name, one.user, one.account, one.state].some((text) => text.toLowerCase().includes(wanted))));
  all.sort(order);
  const pages = Math.max(1, Math.ceil(all.length / ROWS));
  state.page = Math.min(state.page, pages - 1);
  const shown = all.slice(state.page * ROWS, (state.page + 1) * ROWS);
  const rows = shown.map((one) => [
    [one.id, () => make("span", {}, chip(one.id), make("button", { type: "button", data: { trainer: one.id }, ariaLabel: `Explain ${one.id}` }, one.id))],
    one.name, one.account ? `${one.user} (${one.account})` : one.user, one.state,
    withCurve(one, `${one.nodes}${one.planned === one.nodes ? "" : ` → ${one.planned}`} of ${one.limits.replace(":", " to ")}`, "size", true),
    one.done === null ? `epoch ${one.epoch}` : [percent(one.done), () => make("span", {}, make("meter", { min: 0, max: 1, value: one.done, ariaLabel: "done" }), ` ${percent(one.done)}`)],
    lasting(one.left_s), withCurve(one, number(one.rate), "rate", false), withCurve(one, lossOf(one), "loss", false), withCurve(one, number(one.metric), "metric", false), spent(one), whyOf(one),
  ]);
  const focused = document.activeElement?.dataset?.trainer;
  table(find("trainers"), ["id", "name", "user", "state", ">nodes", "done", ">left", ">samples/s", ">training loss", ">metric", ">node-hours", "why"], rows);
  shown.forEach((one, i) => {
    const { classList } = find("trainers").rows[i + 1];
    classList.toggle("failed", isFailed(one));
    classList.toggle("chosen", one.id === state.chosen);
  });
  if (focused) find("trainers").querySelector(`[data-trainer="${CSS.escape(focused)}"]`)?.focus();
  drawPages(all.length, pages);
  const others = state.head?.others ? `${state.head.others} of other users are not shown. ` : "";
  find("more").textContent = others + (all.length ? "" : wanted ? "No trainer is like that." : "No trainers; submit one with 'bftrainer submit'.");
}

function drawPages(count, pages) {
  const box = find("pages"), text = `${state.page} ${count}`;
  if (box.told === text) return;
  box.told = text;
  const turn = (step) => () => {
    state.page += step;
    draw("trainers");
  };
  const button = (label, name, step) => make("button", { type: "button", ariaLabel: name, disabled: !(state.page + step >= 0 && state.page + step < pages), onclick: turn(step) }, label);
  const range = `${state.page * ROWS + 1} to ${Math.min(count, (state.page + 1) * ROWS)} of ${count}`;
  box.replaceChildren(...(pages > 1 ? [button("‹", "Earlier trainers", -1), ` ${range} `, button("›", "Later trainers", 1)] : []));
}

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
  find("legend").replaceChildren(...kinds.map((kind) => make("li", {}, swatch(kind, kind === "starting" ? "t0" : ""), words[kind] || kind)), make("li", {}, "paler after now: planned"),
    ...(state.hasShares ? [make("li", { id: "divided" }, "a row that is divided: a node of which GPUs are lent one by one")] : []));
}

// What the GPUs of a node are used for: "4 GPUs: 2 training t1 net, 1 ordinary, 1 idle".
function sharesInWords(text, described) {
  const shares = sharesOf(text), all = shares.reduce((sum, share) => sum + share[2], 0);
  return `${all} GPU${all === 1 ? "" : "s"}: ${shares.map(([use, trainer, gpus]) => `${gpus} ${described(use, trainer).trim()}`).join(", ")}`;
}

function tellCursor() {
  const { node, at_s } = picture.cursor;
  if (node >= uses.rows.length) return;
  const name = uses.names[node];
  const described = (use, trainer) => `${use}${trainer ? ` ${trainer} ${state.trainers.get(trainer)?.name || ""}` : ""}`;
  let text;
  if (at_s > uses.now_s) {
    const spans = (uses.planned[node] || []).filter(([, , from_s, until_s]) => from_s <= at_s && (until_s === null || at_s <= until_s));
    const shown = spans.some((next) => next[4]) ? spans : spans.slice(0, 1); // of a whole node the first, of GPUs each
    const toCome = ([, trainer, , until_s, gpus]) => `${gpus ? `${gpus} GPU${gpus === 1 ? "" : "s"} ` : ""}${trainer ? described("training", trainer) : "an ordinary job"}${until_s ? ` until ${clock(until_s)}` : ""}`;
    text = shown.length ? `planned: ${shown.map(toCome).join("; ")}` : "nothing is planned";
  } else if (at_s < uses.since_s) {
    text = "not known";
  } else {
    const [[from_s, use, trainer], end_s] = uses.at(node, at_s);
    const isShared = uses.uses[use] === "shared", span = `from ${clock(from_s)}${end_s ? ` to ${clock(end_s)}` : " on"}`;
    text = isShared ? `${sharesInWords(trainer, described)}; ${span}` : `${described(uses.uses[use], trainer)}, ${span}`;
    const gpus = !end_s && !isShared && state.trainers.get(trainer)?.gpus[name];
    if (gpus) text += `; ${gpus}`;
  }
  find("under").textContent = `${name}, ${clock(at_s)}: ${text}`;
}

function drawHarm() {
  const harm = state.parts.harm;
  if (!harm) return;
  const left = harm.leavings.by_pilots, hasParts = harm.by_gpu.length > 0;
  const gpus = hasParts ? ` (${counted(harm.gpus, "GPU")} of parts)` : "";
  const rows = [
    ["promise", `${percent(harm.share_promised)} of ${hasParts ? "nodes or parts" : "nodes"} free within ${harm.limit_s} s: ${harm.is_kept ? "kept" : "broken"}`],
    ["hand-overs", `${countedNodes(harm.hand_overs, hasParts)}${gpus} to ${counted(harm.jobs, "job")}, ${percent(harm.share_within)} of the measured in time`],
    ["delay", `median ${number(harm.median_s, 3)} s, 95% within ${number(harm.p95_s, 3)} s, longest ${number(harm.max_s, 3)} s`],
    ["who ended pilots", `${countedNodes(harm.given_back, hasParts)} given back, ${harm.preempted} preempted, ${harm.in_vain} released in vain`],
    ["scheduler cycles lost", `${counted(harm.cycles_lost, "job")} had to preempt and started a cycle later, ${number(harm.cycles_lost_s, 1)} s in all`],
    ["back-off", harm.back_off || "none"],
  ];
  rows.push(["nodes unusable soon after pilots", `${left.unusable} of ${left.left}; above ordinary jobs: ${percent(harm.leavings.excess)}`]);
  find("harm").replaceChildren(make("dl", {}, ...rows.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)))));
}

function drawHarvest() {
  const told = state.parts[`harvest by ${state.by}`];
  if (!told) return;
  const had = new Map(state.by === "day" ? (state.parts.days || []).map(([day, had_s, trained_s]) => [day, [hours(had_s / 3600), percent(trained_s / had_s)]]) : []);
  const hasGpus = told.lines.some((one) => one.gpu_h > 0);
  const rows = told.lines.map((one) => [one[state.by] || "–", hours(one.harvested_h), hours(one.warm_up_h), hours(one.idle_h), hours(one.redone_h), hours(one.given_back_h), String(one.pilots), ...(hasGpus ? [hours(one.gpu_h)] : []), ...(had.size ? had.get(one.day) || ["–", "–"] : [])]);
  table(find("harvest"), [state.by === "account" ? "project" : state.by, ">harvested, node-hours", ">starting", ">held idle", ">redone", ">time limit given back", ">pilots", ...(hasGpus ? [">GPU-hours"] : []), ...(had.size ? [">without ordinary jobs", ">of it trained"] : [])], rows);
  find("had").textContent = had.size ? "Node-hours without ordinary jobs are counted while a daemon runs." : "";
}

function drawStudies() {
  const told = state.parts.studies;
  if (!told) return;
  find("no-studies").hidden = told.studies.length > 0;
  const rows = told.studies.map((one) => [[one.study, () => make("button", { type: "button", data: { study: one.study } }, one.study)], String(one.trials), String(one.active), String(one.nodes)]);
  table(find("studies"), ["study", ">trials", ">active", ">nodes"], rows);
  if (state.study) explainStudy();
}

// ---- what is asked for ----------------------------------------------------------------------

// The other half of the cookie: kept by origin, where other ports of this host do not see it. A portal has one origin
// for all pages.
const KEY = `key of ${location.pathname}`;
// In a header, which proxies do not log; no other site's script may send one to us.
const get = (path, more = {}) => fetch(path, { headers: { "Bftrainer-Key": localStorage.getItem(KEY) || "" }, cache: "no-store", ...more });

async function ask(path) {
  if (saved) {
    const told = saved.answers[decodeURIComponent(path)];
    if (!told) throw new Error("This file does not have it.");
    return told;
  }
  const answer = await get(path);
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.error ? `${told.error.code}: ${told.error.cause} ${told.error.next_step}` : `no answer (${answer.status})`);
  return told;
}

function commands(one) {
  const { id } = one;
  const all = one.is_over ? [`bftrainer logs ${id}`, `bftrainer requeue ${id}`] : [`bftrainer logs ${id} --follow`, `bftrainer hold ${id}`, `bftrainer cancel ${id}`];
  return make("ul", { className: "commands" }, ...all.map((text) => make("li", {}, make("code", {}, text), make("button", { type: "button", ariaLabel: `Copy ${text}`, data: { copy: text } }, "copy"))));
}

function charts(one) {
  const colour = colourOf(one.id);
  return make("div", { className: "charts" },
    chart("training loss", curveOf(one, "loss"), colour, (value) => (value === null ? "not known" : number(value)), false, false),
    chart("metric", curveOf(one, "metric"), colour, (value) => number(value), false, false),
    chart("samples/s", curveOf(one, "rate"), colour, (value) => number(value, 3), true, false),
    chart("workers", curveOf(one, "size"), colour, (value) => number(value, 3), true, true),
    curveOf(one, "gpu").some(([, value]) => value !== null) ? chart("GPU use, %", curveOf(one, "gpu"), colour, (value) => (value === null ? "not known" : number(value, 3)), true, false) : null);
}

async function explain() {
  const id = state.chosen, box = find("explain"), one = state.trainers.get(id);
  box.hidden = !id;
  if (!id) return;
  const close = make("button", { type: "button", data: { close: "1" } }, "close");
  const parts = [];
  try {
    const told = await ask(`explain/${encodeURIComponent(id)}`);
    const log = state.isLogShown || (one && isFailed(one)) ? await ask(`log/${encodeURIComponent(id)}`).catch((problem) => ({ name: "", lines: [problem.message] })) : null;
    if (state.chosen !== id) return;
    const speeds = make("table");
    if (told.speeds.length) {
      table(speeds, [told.gpus_per_unit ? ">GPUs" : ">nodes", ">samples/s", ">left", ">gain in samples"], told.speeds.map((speed) => [
        told.gpus_per_unit > 1 ? sizeText(speed.size, told.gpus_per_unit) : String(speed.size), number(speed.samples_per_s), lasting(speed.left_s),
        speed.size === told.planned_size ? "planned" : number(speed.change_samples, 3)]));
    }
    parts.push(
      make("h3", {}, `Why ${id}${one ? ` (${one.name})` : ""} is ${told.state} on ${sizeText(told.observed_size, told.gpus_per_unit)}; planned: ${told.planned_size} `, close),
      make("ul", {}, ...told.sentences.map((text) => make("li", {}, text))));
    if (one?.gpu_use) parts.push(make("p", { id: "gpus" }, `${one.gpu_use}.`));
    if (one) parts.push(charts(one), commands(one));
    parts.push(speeds, log
      ? make("div", {}, make("h4", {}, `Log ${log.name}`), make("pre", { tabIndex: 0 }, log.lines.slice(-30).join("\n")))
      : make("button", { type: "button", data: { trainer: id, log: "1" } }, "log"));
  } catch (problem) {
    parts.push(make("h3", {}, `${id} `, close), make("p", {}, problem.message));
    if (one) parts.push(charts(one));
  }
  box.replaceChildren(...parts);
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
  const { timeline, planned, head, trainers, curves, metrics, now_s, is_first, ...parts } = news;
  if (is_first) for (const map of [state.trainers, state.curves, state.later]) map.clear();
  if (curves || metrics) takeCurves(curves || {}, metrics || {});
  if (timeline) uses.take(timeline);
  if (timeline && !state.hasShares && uses.hasShares) {
    state.hasShares = true;
    drawLegend();
  }
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
    if (name === "harvest by trainer") draw("trainers");
  }
}

function say(text, isAway = false) {
  find("link").textContent = text;
  find("link").classList.toggle("away", isAway);
}

function greet({ title, is_live, user }) {
  state.user = user;
  find("title").textContent = document.title = title;
  state.isLive = is_live;
}

function tell(news) {
  take(news);
  say(state.isLive ? `Live, ${clock(news.now_s)}` : `As it was at ${new Date(1000 * news.now_s).toLocaleString()}`);
}

// Server-sent events (WHATWG HTML, 9.2.6); an EventSource sends no headers. Ends when the answer does.
async function hear(answer, acts) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read().catch(() => ({ done: true }));
    if (done) return;
    const texts = (rest + value).split("\n\n");
    rest = texts.pop();
    for (const text of texts) {
      const [kind, data] = text.split("\n").map((line) => line.slice(line.indexOf(": ") + 2));
      heard = Date.now();
      try {
        acts[kind](JSON.parse(data));
      } catch (problem) {
        reportError(problem); // and go on
      }
    }
  }
}

async function listen() {
  stream?.abort();
  const mine = (stream = new AbortController());
  const watch = setInterval(() => {
    if (state.isLive && Date.now() - heard > SILENT_MS) say(`Nothing was heard since ${new Date(heard).toLocaleTimeString()}; trying again …`, true);
  }, 5000);
  const away = ({ code, cause, next }) => say(`${code}: ${cause} ${next}`, true);
  const answer = await get("events", { signal: mine.signal }).catch(() => null);
  if (answer?.ok) await hear(answer, { hello: greet, news: tell, away });
  clearInterval(watch);
  if (mine.signal.aborted) return;
  say("The connection is lost; trying again …", true);
  setTimeout(begin, 1000);
}

async function begin() {
  const token = location.hash.slice(1);
  if (token && !find(token)) {
    history.replaceState(null, "", location.pathname);
    const answer = await fetch("enter", { method: "POST", body: token }).catch(() => null);
    if (answer?.ok) localStorage.setItem(KEY, await answer.text());
  }
  const known = await get("known").catch(() => null);
  if (!known) return say("The connection is lost; trying again …", true), setTimeout(begin, 2000);
  if ([401, 403].includes(known.status)) return say("This link was used already, or is of another run. Open the newest link that 'bftrainer web' printed.", true);
  if (!document.hidden) listen();
}

// A browser has six connections to a host: tabs that nobody sees leave theirs to others.
document.addEventListener("visibilitychange", () => {
  if (saved) return;
  if (document.hidden) stream?.abort();
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
for (const name of ["over", "wanted", "price"]) find(name).oninput = () => {
  if (name === "price") localStorage.setItem(PRICE, find(name).value);
  state.page = 0;
  draw("trainers");
};
try {
  find("price").value = localStorage.getItem(PRICE) || "";
} catch { /* a file may have no storage */ }

const tabs = [...find("tabs").children];
function show(tab) {
  for (const one of tabs) {
    const isShown = one === tab;
    one.setAttribute("aria-selected", String(isShown));
    one.tabIndex = isShown ? 0 : -1;
    find(one.getAttribute("aria-controls")).hidden = !isShown;
  }
}
find("tabs").onclick = ({ target }) => tabs.includes(target) && show(target);
find("tabs").onkeydown = ({ key }) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (!step) return;
  const next = tabs.at((tabs.indexOf(document.activeElement) + step) % tabs.length);
  show(next);
  next.focus();
};
show(tabs[0]);
find("filter").oninput = ({ target }) => {
  const wanted = target.value.trim().toLowerCase();
  const meets = (text) => text.toLowerCase().includes(wanted);
  picture.choose(wanted && ((node) => {
    const isMet = (trainer) => trainer.toLowerCase() === wanted || (trainer && meets(state.trainers.get(trainer)?.name || ""));
    return meets(uses.names[node]) || uses.trainersOn(node).some(isMet);
  }));
  draw("picture");
};
find("scroller").onscroll = () => draw("picture");
new ResizeObserver(() => draw("picture")).observe(find("scroller"));
matchMedia("(prefers-color-scheme: dark)").onchange = () => { picture.forget(); drawLegend(); draw("picture", "trainers"); };

picture.canvas.onpointermove = ({ offsetX, offsetY }) => {
  const row = picture.rowAt(offsetY);
  if (row === null || offsetX < picture.left) return;
  picture.cursor = { node: picture.order[row], at_s: picture.timeAt(offsetX), part: picture.partAt(offsetY) };
  draw("picture");
};
picture.canvas.onclick = () => {
  const { node, at_s, part } = picture.cursor || {};
  if (node === undefined) return;
  const [[, use, told]] = uses.at(node, at_s);
  // Of a node in parts the one that is pointed at; by keys the first that is a trainer's.
  const isMeant = ([, trainer, , begin, end]) => (part === undefined ? trainer : begin <= part && part < end);
  const trainer = uses.uses[use] === "shared" ? sharesOf(told).find(isMeant)?.[1] : told;
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

function choose(trainer, isLogShown = false) {
  Object.assign(state, { chosen: trainer, isLogShown });
  draw("trainers");
  return explain();
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  } catch { // not over plain http to another host: it can be copied by hand then
    getSelection().selectAllChildren(button.previousSibling);
  }
}

document.addEventListener("click", ({ target }) => {
  if (target.dataset?.trainer) choose(target.dataset.trainer, Boolean(target.dataset.log)).then(() => find("explain").scrollIntoView({ block: "nearest" }));
  if (target.dataset?.copy) copy(target);
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

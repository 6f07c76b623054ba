// The picture: nodes x time. `Uses` keeps what the daemon told, `Picture` draws it on a canvas.
// A node that lends its GPUs one by one is a row, too: its use is "shared", its trainer the shares.

const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#b255a0", "#c29200", "#3aa0d8", "#6a4fb3", "#7f7320"]; // after Okabe and Ito
const PLAIN = new Set(["training", "ordinary", "idle", "unavailable"]);
export const PALE = 0.4; // of what is planned
const TINT = 0.45; // of what starts

// A trainer's colour by its number, so that all browsers and days agree.
export function colourOf(trainer) {
  const number = parseInt(trainer.replace(/\D/g, ""), 10) || 0;
  return PALETTE[number % PALETTE.length];
}

const SHARES = new Map(), MOST_SHARES = 20000; // by their text: few, again and again

// The shares in a text: [use, trainer, GPUs, begin, end], the last two as parts of the node, 0 to 1.
export function sharesOf(text) {
  let shares = SHARES.get(text);
  if (shares) return shares;
  const told = text.split(",").filter(Boolean).map((one) => one.split(":"));
  const all = told.reduce((sum, [, , gpus]) => sum + Number(gpus), 0);
  let begin = 0;
  shares = told.map(([use, trainer, gpus]) => [use, trainer, Number(gpus), begin / all, (begin += Number(gpus)) / all]);
  if (SHARES.size >= MOST_SHARES) SHARES.clear();
  SHARES.set(text, shares);
  return shares;
}

export class Uses {
  constructor() {
    this.clear();
  }

  clear() {
    this.names = [];
    this.rows = []; // of each node: [[from_s, use, trainer], ...] in order of time
    this.uses = [];
    this.planned = [];
    this.hasShares = false; // a node lends its GPUs one by one
    this.since_s = this.now_s = 0;
  }

  take(told) {
    if (told.is_whole) this.clear();
    this.uses = told.uses;
    this.since_s = Math.max(this.since_s, told.since_s);
    this.names = told.nodes;
    const shared = this.uses.indexOf("shared");
    this.hasShares ||= told.base.some(([use]) => use === shared) || told.changes.some(([, , use]) => use === shared);
    while (this.rows.length < this.names.length) {
      const [use, trainer] = told.base[this.rows.length] || [this.uses.indexOf("unavailable"), ""];
      this.rows.push([[this.since_s, use, trainer]]);
    }
    for (const [at_s, node, use, trainer] of told.changes) this.rows[node].push([at_s, use, trainer]);
    for (const row of this.rows) {
      let old = 0;
      while (old + 1 < row.length && row[old + 1][0] <= this.since_s) old++;
      if (old) row.splice(0, old);
    }
  }

  plan(planned) {
    this.planned = [];
    for (const one of planned) (this.planned[one[0]] ||= []).push(one);
  }

  // What node number `node` was used for at a time: [from_s, use, trainer], and when that ended.
  at(node, at_s) {
    const row = this.rows[node];
    let low = 0, high = row.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (row[middle][0] <= at_s) low = middle; else high = middle - 1;
    }
    return [row[low], low + 1 < row.length ? row[low + 1][0] : null];
  }

  // The trainers that have something of a node now.
  trainersOn(node) {
    const [, use, trainer] = this.rows[node].at(-1);
    if (this.uses[use] !== "shared") return [trainer];
    return sharesOf(trainer).map(([, name]) => name);
  }

  // Node-seconds by name of use, between two times.
  sums(from_s, to_s) {
    const found = Object.fromEntries(this.uses.map((name) => [name, 0]));
    for (const row of this.rows) {
      row.forEach(([begin_s, use, trainer], i) => {
        const end_s = Math.min(to_s, i + 1 < row.length ? row[i + 1][0] : to_s);
        const lasted_s = Math.max(0, end_s - Math.max(from_s, begin_s));
        if (this.uses[use] !== "shared") found[this.uses[use]] += lasted_s;
        else for (const [name, , , begin, end] of sharesOf(trainer)) found[name] += (end - begin) * lasted_s;
      });
    }
    return found;
  }
}

// A use is told by its pattern as well as by its colour.
export function fillOf(context, use, trainer, ratio) {
  const style = getComputedStyle(document.documentElement);
  if (use === "training" && trainer) return colourOf(trainer);
  const isFor = use === "starting" && trainer; // somebody's: in a tint of its colour
  const ground = style.getPropertyValue(`--${use}`).trim();
  if (PLAIN.has(use)) return ground;
  const size = Math.round(6 * ratio), tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const on = tile.getContext("2d");
  on.fillStyle = ground;
  on.fillRect(0, 0, size, size);
  if (isFor) {
    on.globalAlpha = TINT;
    on.fillStyle = colourOf(trainer);
    on.fillRect(0, 0, size, size);
  }
  on.strokeStyle = on.fillStyle = style.getPropertyValue(use === "unreachable" ? "--ground" : "--ink").trim();
  on.globalAlpha = use === "reserve" ? 0.25 : 0.6;
  on.lineWidth = ratio;
  on.beginPath();
  if (use === "held") on.arc(size / 2, size / 2, size / 5, 0, 7);
  if (use === "starting" || use === "unreachable" || use === "reserve") { on.moveTo(0, size); on.lineTo(size, 0); }
  if (use === "leaving" || use === "unreachable") { on.moveTo(0, 0); on.lineTo(size, size); }
  if (use === "held") on.fill(); else on.stroke();
  return context.createPattern(tile, "repeat");
}

const AXIS = 22, ABOVE = 70, MOST_ROW = 22, MOST_DIVIDED = 44; // CSS pixels: times below, the pool above, rows

export class Picture {
  constructor(canvas, scroller, uses) {
    Object.assign(this, { canvas, scroller, uses, span_s: 0, cursor: null, order: [], filter: null });
    this.context = canvas.getContext("2d", { alpha: false });
    this.space = document.createElement("div");
    scroller.append(this.space);
    this.forget();
  }

  forget() {
    this.fills = new Map(); // colours may be others now
  }

  choose(filter) {
    this.filter = filter;
  }

  layout() {
    const { uses, scroller, canvas } = this;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    this.order = uses.names.map((_, i) => i).filter((i) => !this.filter || this.filter(i));
    const mostRow = uses.hasShares ? MOST_DIVIDED : MOST_ROW; // divided rows are to be told apart
    scroller.style.maxHeight = `${ABOVE + AXIS + 2 + mostRow * Math.max(3, this.order.length)}px`; // few nodes need less
    const width = scroller.clientWidth, height = scroller.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio) || ratio !== this.ratio) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
      this.forget();
    }
    const room = height - AXIS - ABOVE;
    this.rowHeight = Math.max(3, Math.min(mostRow, room / Math.max(1, this.order.length)));
    const whole = ABOVE + AXIS + this.rowHeight * this.order.length;
    this.space.style.height = `${Math.max(0, whole > height + 1 ? whole : 0)}px`;
    this.left = this.rowHeight >= 11 ? Math.min(110, width / 4) : 10;
    this.top = scroller.scrollTop; // read once: each reading lays out
    this.ratio = ratio;
    this.width = width;
    this.height = height;
    const known_s = Math.max(60, uses.now_s - uses.since_s);
    const span_s = this.span_s || known_s * 1.02; // 0: all that is known
    this.ahead_s = span_s / 4;
    this.from_s = uses.now_s - span_s;
    this.to_s = uses.now_s + this.ahead_s;
  }

  x(at_s) {
    return this.left + ((this.width - this.left) * (at_s - this.from_s)) / (this.to_s - this.from_s);
  }

  timeAt(x) {
    return this.from_s + ((this.to_s - this.from_s) * (x - this.left)) / (this.width - this.left);
  }

  rowAt(y) {
    if (y < ABOVE || y > this.height - AXIS) return null;
    const row = Math.floor((y - ABOVE + this.top) / this.rowHeight);
    return row < this.order.length ? row : null;
  }

  // At which part of its row's height this is, from 0 to 1.
  partAt(y) {
    return ((y - ABOVE + this.top) / this.rowHeight) % 1;
  }

  fill(use, trainer) {
    const key = use === "training" || use === "starting" ? `${use} ${trainer}` : use;
    let found = this.fills.get(key);
    if (!found) this.fills.set(key, (found = fillOf(this.context, use, trainer, this.ratio)));
    return found;
  }

  draw() {
    this.layout();
    const { context, uses, ratio, width, height } = this;
    const style = getComputedStyle(document.documentElement);
    this.ink = style.getPropertyValue("--ink").trim();
    this.soft = style.getPropertyValue("--soft").trim();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = style.getPropertyValue("--ground").trim();
    context.fillRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    if (!uses.names.length) return;
    const first = Math.floor(this.top / this.rowHeight);
    const shown = Math.ceil((height - AXIS - ABOVE) / this.rowHeight) + 1;
    context.save();
    context.beginPath();
    context.rect(0, ABOVE, width, height - AXIS - ABOVE);
    context.clip();
    for (let row = first; row < Math.min(first + shown, this.order.length); row++) this.drawRow(row);
    this.drawCursor();
    context.restore();
    this.drawPool();
    this.drawAxis();
  }

  drawRow(row) {
    const { context, uses } = this, node = this.order[row], parts = uses.rows[node];
    const y = ABOVE + row * this.rowHeight - this.top;
    const tall = this.rowHeight > 4 ? this.rowHeight - 1 : this.rowHeight;
    for (let i = 0; i < parts.length; i++) {
      const [from_s, use, trainer] = parts[i];
      const to_s = i + 1 < parts.length ? parts[i + 1][0] : uses.now_s;
      if (to_s <= this.from_s) continue;
      if (uses.uses[use] !== "shared") this.box(from_s, to_s, y, tall, uses.uses[use], trainer);
      else for (const [kind, who, , begin, end] of sharesOf(trainer)) this.box(from_s, to_s, y + begin * tall, (end - begin) * tall, kind, who);
    }
    context.globalAlpha = PALE;
    let above = 0; // GPUs that are drawn already
    for (const [, trainer, from_s, until_s, gpus] of uses.planned[node] || []) {
      const all = gpus ? this.gpusOf(node) : 0, begin = all ? Math.min(above, all - gpus) / all : 0;
      const part = all ? Math.min(1, gpus / all) : 1;
      this.box(Math.max(from_s, uses.now_s), until_s ?? this.to_s, y + Math.max(0, begin) * tall, part * tall, trainer ? "training" : "ordinary", trainer);
      above += gpus || 0;
    }
    context.globalAlpha = 1;
    if (this.rowHeight >= 11) {
      context.fillStyle = this.ink;
      context.textBaseline = "middle";
      context.textAlign = "right";
      context.fillText(short(uses.names[node], 15), this.left - 6, y + tall / 2 + 0.5);
    }
  }

  // How many GPUs a node lends one by one; 0: it is lent as a whole.
  gpusOf(node) {
    const [, use, trainer] = this.uses.rows[node].at(-1);
    return this.uses.uses[use] === "shared" ? sharesOf(trainer).reduce((sum, share) => sum + share[2], 0) : 0;
  }

  box(from_s, to_s, y, tall, use, trainer) {
    const begin = Math.max(this.left, this.x(from_s)), end = Math.min(this.width, this.x(to_s));
    if (end <= begin) return;
    this.context.fillStyle = this.fill(use, trainer);
    this.context.fillRect(begin, y, Math.max(1, end - begin), tall);
  }

  // How many nodes had which use, column by column.
  drawPool() {
    const { context, uses, order } = this, columns = Math.max(1, Math.floor(this.x(uses.now_s) - this.left));
    const kinds = ["training", "starting", "held", "leaving", "unreachable", "reserve", "idle"];
    const counts = new Map(kinds.map((kind) => [kind, new Float64Array(columns + 1)]));
    const column = (at_s) => Math.max(0, Math.min(columns, Math.round(this.x(at_s) - this.left)));
    for (const node of order) {
      const parts = uses.rows[node];
      for (let i = 0; i < parts.length; i++) {
        const use = uses.uses[parts[i][1]], isShared = use === "shared", line = counts.get(use);
        if (!line && !isShared) continue;
        const to_s = i + 1 < parts.length ? parts[i + 1][0] : uses.now_s;
        if (to_s <= this.from_s) continue;
        const first = column(parts[i][0]), last = column(to_s);
        if (!isShared) {
          line[first]++;
          line[last]--;
        } else for (const [kind, , , begin, end] of sharesOf(parts[i][2])) {
          const part = counts.get(kind);
          if (!part) continue;
          part[first] += end - begin;
          part[last] -= end - begin;
        }
      }
    }
    let most = 1;
    const now = new Map(kinds.map((kind) => [kind, 0])), stack = [];
    for (let i = 0; i < columns; i++) {
      let sum = 0;
      stack.push(kinds.map((kind) => {
        now.set(kind, now.get(kind) + counts.get(kind)[i]);
        return (sum += now.get(kind));
      }));
      most = Math.max(most, sum);
    }
    const ground = ABOVE - 6, scale = (ABOVE - 18) / most;
    for (let k = kinds.length - 1; k >= 0; k--) { // each is painted over by those below it
      context.fillStyle = this.fill(kinds[k], "");
      context.beginPath();
      context.moveTo(this.left, ground);
      stack.forEach((tops, i) => {
        if (i && tops[k] === stack[i - 1][k] && i + 1 < columns) return;
        context.lineTo(this.left + i, ground - stack[Math.max(0, i - 1)][k] * scale);
        context.lineTo(this.left + i, ground - tops[k] * scale);
      });
      context.lineTo(this.left + columns, ground - stack[columns - 1][k] * scale);
      context.lineTo(this.left + columns, ground);
      context.fill();
    }
    context.fillStyle = this.soft;
    context.textAlign = "left";
    context.textBaseline = "top";
    context.fillText(`nodes without ordinary jobs, at most ${Number(most.toFixed(1))}`, this.left, 0);
  }

  drawAxis() {
    const { context, uses, height } = this, y = height - AXIS;
    const steps = [15, 60, 300, 900, 1800, 3600, 7200, 21600, 86400];
    const step = steps.find((one) => (this.to_s - this.from_s) / one <= this.width / 90) || 864000;
    context.fillStyle = this.soft;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let at_s = Math.ceil(this.from_s / step) * step; at_s < this.to_s; at_s += step) {
      context.fillRect(this.x(at_s), y, 1, 4);
      context.fillText(clock(at_s, step < 300), this.x(at_s), y + 6);
    }
    context.fillStyle = this.ink;
    context.fillRect(this.x(uses.now_s), 14, 1.5, y - 10);
    context.textBaseline = "top";
    context.fillText("now", this.x(uses.now_s), 0);
    if (uses.since_s > this.from_s) {
      context.fillStyle = this.soft;
      context.textAlign = "right";
      const x = this.x(uses.since_s);
      if (x - this.left > 80) context.fillText("not known before", x - 4, ABOVE + 2);
    }
  }

  drawCursor() {
    if (!this.cursor) return;
    const { context } = this, row = this.order.indexOf(this.cursor.node);
    context.strokeStyle = this.ink;
    context.lineWidth = 1.5;
    const y = ABOVE + row * this.rowHeight - this.top;
    context.strokeRect(this.x(this.cursor.at_s) - 3, y - 1, 6, this.rowHeight + 1);
  }
}

export function short(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

const FORM = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const MINUTES = new Intl.DateTimeFormat([], FORM), SECONDS = new Intl.DateTimeFormat([], { ...FORM, second: "2-digit" });

export function clock(at_s, seconds = true) {
  return (seconds ? SECONDS : MINUTES).format(1000 * at_s);
}

export function lasting(s) {
  if (s === null || s === undefined) return "–";
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
}

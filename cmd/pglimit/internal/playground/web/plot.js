// A plot of a level over time: the curve, the capacity and a mark per request.

export const span = 30_000; // ms shown
const lag = 150; // ms that the plot is delayed, so that curves end at a known level
const room = { top: 14, right: 8, bottom: 16 }; // and at the left the labels of levels

let colours;
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const probe = document.body.appendChild(document.createElement("i"));
  colours = {};
  for (const name of ["text", "quiet", "line", "edge", "allowed", "delayed", "denied", "fill"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  colours.font = `11px ${style.fontFamily}`;
  probe.remove();
}
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
  matchMedia(query).addEventListener("change", () => (colours = undefined));
}

export class Plot {
  steps = false; // whether the level falls in steps instead of continuously
  #capacity = 1;
  #stale = true;
  #size; // of the canvas; undefined until measured
  #drawnIn; // the colours of the last frame
  #points = []; // {at, level}, in order; level is NaN if unknown
  #marks = []; // {at, level, outcome}

  constructor(canvas) {
    this.canvas = canvas;
    new ResizeObserver(() => (this.#size = undefined)).observe(canvas);
  }

  get capacity() {
    return this.#capacity;
  }

  set capacity(units) {
    this.#stale ||= units !== this.#capacity;
    this.#capacity = units;
  }

  hit(d) {
    if (d.outcome !== "denied") this.#add({ at: d.at - 0.001, level: Math.max(0, d.level - d.cost) });
    this.level(d.at, d.level);
    this.#marks.push({ at: d.at, level: d.level, outcome: d.outcome });
    if (this.#marks.length > 4000) this.#marks.splice(0, 1000);
  }

  level(at, level) {
    this.#add({ at, level });
  }

  /** Marks the level as unknown from at until the next level. */
  gap(at) {
    if (this.#points.length) this.#add({ at, level: NaN });
  }

  /** Removes everything. The level is 0 from at on; without at it is unknown. */
  clear(at) {
    this.#points = at ? [{ at, level: 0 }] : [];
    this.#marks = [];
    this.#stale = true;
  }

  #add(p) {
    const points = this.#points;
    let i = points.length;
    while (i > 0 && points[i - 1].at > p.at) i--;
    points.splice(i, 0, p);
    if (points.length > 4000) points.splice(0, 1000);
  }

  /** Reports whether a new frame would equal the last one. */
  #still(now) {
    const last = this.#points.at(-1);
    const moves = last && (last.level > 0 || now - last.at < span + 2 * lag + 1000);
    return !moves && !this.#stale && this.#size && colours && this.#drawnIn === colours;
  }

  /** Returns a description of the plot for screen readers. */
  words(now) {
    const recent = this.#marks.filter((m) => m.at > now - span);
    const count = (o) => recent.filter((m) => m.outcome === o).length;
    const level = this.#points.at(-1)?.level || 0;
    return `Level ${short(level, this.capacity)} of ${short(this.capacity)}. In the last 30 seconds ${count("allowed")} allowed, ${count("delayed")} delayed, ${count("denied")} denied.`;
  }

  draw(now) {
    if (this.#still(now)) return;
    this.#stale = false;
    if (!colours) readColours();
    this.#drawnIn = colours;
    const c = this.#context();
    const { width, height } = this.#size;
    const end = now - lag;
    const seen = this.#points.filter((p, i, all) => p.at > end - span || all[i + 1]?.at > end - span);
    const highest = seen.reduce((most, p) => Math.max(most, p.level || 0), this.capacity);
    c.font = colours.font;
    const left = Math.ceil(c.measureText(short(this.capacity)).width) + 6;
    const right = width - room.right;
    const x = (at) => right - ((end - at) / span) * (right - left);
    const y = (level) => height - room.bottom - (level / highest) * (height - room.top - room.bottom);

    c.clearRect(0, 0, width, height);
    this.#axes(c, x, y, end);
    c.save();
    c.beginPath();
    c.rect(left, 0, right - left, y(0) + 3); // no mark is drawn over a label
    c.clip();
    this.#curve(c, seen, x, y, end);
    for (const m of this.#marks) {
      if (m.at > end - span && m.at <= end) mark(c, m.outcome, x(m.at), m.outcome === "denied" ? y(this.capacity) - 8 : y(m.level));
    }
    c.restore();
  }

  #context() {
    const c = this.canvas.getContext("2d");
    if (!this.#size) {
      const box = this.canvas.getBoundingClientRect();
      const scale = devicePixelRatio || 1;
      this.#size = { width: box.width, height: box.height };
      this.canvas.width = Math.round(box.width * scale);
      this.canvas.height = Math.round(box.height * scale);
      c.setTransform(scale, 0, 0, scale, 0, 0);
    }
    return c;
  }

  #axes(c, x, y, end) {
    c.lineWidth = 1;
    c.strokeStyle = colours.line;
    c.fillStyle = colours.quiet;
    c.textBaseline = "top";
    for (const [ago, align] of [[30, "left"], [20, "center"], [10, "center"], [0, "right"]]) {
      const at = x(end - ago * 1000);
      line(c, at, room.top, at, y(0));
      c.textAlign = align;
      c.fillText(ago ? `−${ago} s` : "now", at, y(0) + 4);
    }
    const [left, right] = [x(end - span), x(end)];
    line(c, left, y(0), right, y(0));
    c.strokeStyle = colours.edge;
    c.setLineDash([6, 4]);
    line(c, left, y(this.capacity), right, y(this.capacity));
    c.setLineDash([]);
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const level of [0, this.capacity]) c.fillText(short(level), left - 4, y(level));
  }

  #curve(c, points, x, y, end) {
    let run = [];
    const flush = () => {
      if (run.length > 1) {
        c.beginPath();
        c.moveTo(run[0][0], y(0));
        for (const [px, py] of run) c.lineTo(px, py);
        c.lineTo(run.at(-1)[0], y(0));
        c.fillStyle = colours.fill;
        c.fill();
        c.beginPath();
        for (const [px, py] of run) c.lineTo(px, py);
        c.strokeStyle = colours.allowed;
        c.lineWidth = 2;
        c.lineJoin = "round";
        c.stroke();
      }
      run = [];
    };
    for (const [i, p] of points.entries()) {
      if (Number.isNaN(p.level)) {
        flush();
        continue;
      }
      if (this.steps && run.length) run.push([x(p.at), run.at(-1)[1]]);
      run.push([x(p.at), y(p.level)]);
      if (i === points.length - 1 && p.at < end) run.push([x(end), y(p.level)]);
    }
    flush();
  }
}

function line(c, x1, y1, x2, y2) {
  c.beginPath();
  c.moveTo(x1, y1);
  c.lineTo(x2, y2);
  c.stroke();
}

// Outcomes differ in shape as well as in colour.
function mark(c, outcome, x, y) {
  c.fillStyle = c.strokeStyle = colours[outcome];
  c.lineWidth = 2;
  c.beginPath();
  switch (outcome) {
    case "allowed":
      c.arc(x, y, 3.2, 0, 7);
      return c.fill();
    case "delayed":
      for (const [dx, dy] of [[0, -4.6], [4.6, 0], [0, 4.6], [-4.6, 0]]) c.lineTo(x + dx, y + dy);
      return c.fill();
  }
  for (const d of [-1, 1]) {
    c.moveTo(x - 3.6, y - 3.6 * d);
    c.lineTo(x + 3.6, y + 3.6 * d);
  }
  c.stroke();
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4, roundingMode: "trunc" });

/** Formats a number briefly enough for a card. of, the capacity, sets the precision. */
export function short(v, of = v) {
  if (v >= 1e5) return compact.format(v);
  if (of > 0 && of < 0.1) return String(Number(v.toFixed(1 - Math.floor(Math.log10(of)))));
  return Number(v.toFixed(v < 10 ? 2 : 1)).toLocaleString("en");
}

// The chart of denials over time, its legend, and the same as a table.

import { h, update } from "./dom.js";
import { clock, number } from "./format.js";
import { empty } from "./parts.js";

const spans = [[1, "1 hour"], [6, "6 hours"], [24, "24 hours"], [168, "7 days"]];
const parts = [["blocked", "By a block"], ["above_burst", "Above the burst"], ["overloaded", "Overload"], ["shadowed", "Let pass (shadow)"]];
const most = 5; // policies that have a separate colour
const height = 208;

/** Returns the span of an address, in hours. */
export const hoursOf = (query) => spans.find(([hours]) => hours === Number(query.get("hours")))?.[0] ?? 24;

/** Returns a span in words. */
export const spanOf = (hours) => spans.find(([h]) => h === hours)[1];

// Returns the slots of the span, oldest first, the policies, most first, and their sums.
function slots({ at, hours, slot_s, slots }) {
  const size = slot_s * 1000;
  const count = (hours * 3600) / slot_s;
  const first = (Math.floor(Date.parse(at) / size) - count + 1) * size;
  const list = Array.from({ length: count }, (_, i) => ({ start: first + i * size, total: 0, ...Object.fromEntries(parts.map(([field]) => [field, 0])), by: new Map() }));
  const sums = new Map();
  for (const s of slots) {
    const one = list[Math.round((Date.parse(s.start) - first) / size)];
    if (!one) continue;
    for (const [field] of parts) one[field] += s[field];
    one.total += s.denials;
    one.by.set(s.policy, (one.by.get(s.policy) ?? 0) + s.denials);
    sums.set(s.policy, (sums.get(s.policy) ?? 0) + s.denials);
  }
  const policies = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a) || (a < b ? -1 : 1));
  return { list, policies, sums, size };
}

// The series: policies in the order of their names, so that colours stay, then all others.
function series(policies) {
  const named = policies.slice(0, most).sort();
  const others = policies.slice(most);
  return [
    ...named.map((name, i) => ({ name, colour: `c${i}`, of: (by) => by.get(name) ?? 0 })),
    ...(others.length ? [{ name: `${others.length} others`, colour: "c5", of: (by) => others.reduce((sum, name) => sum + (by.get(name) ?? 0), 0) }] : []),
  ];
}

// Returns a round number that is at least v.
function roundUp(v) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, v)));
  return [1, 2, 3, 4, 6, 8, 10].map((n) => n * power).find((n) => n >= v);
}

let legend; // draws that of the chart on the page, for the slot at a time or for all
let pointed; // the start of the slot under the pointer

document.addEventListener("pointerover", (e) => {
  const start = Number(e.target.closest?.(".chart g")?.dataset.id) || undefined;
  const list = document.querySelector(".legend");
  if (start === pointed || !list) return;
  pointed = start;
  update(list, legend());
});

/** Returns the choice of a span, and the chart of the denials with its legend and table. width is the room in pixels, none what to say if there are no denials. */
export function chart(denials, width, none) {
  const chosen = spanOf(denials.hours);
  const choice = h("div", { class: "buttons", role: "group", "aria-label": "Time span" }, spans.map(([hours, text]) => h("button", { class: "small", "data-do": "span", "data-id": hours, "data-hours": hours, "aria-pressed": String(hours === denials.hours) }, text)));
  return [choice, denials.slots.length ? drawn(denials, width, chosen) : empty(`None are counted in the last ${chosen.replace(/^1 /, "")}. ${none}`)];
}

function drawn(denials, width, chosen) {
  const { list, policies, sums, size } = slots(denials);
  const all = series(policies);
  const total = list.reduce((sum, s) => sum + s.total, 0);
  const top = roundUp(list.reduce((max, s) => Math.max(max, s.total), 0));
  const marks = top % 2 ? [0, top] : [0, top / 2, top];
  const room = { top: 8, right: 4, bottom: 22, left: 12 + 8 * Math.max(...marks.map((v) => number(v).length)) };
  const peak = list.find((s) => s.total > 0 && list.every((o) => o.total <= s.total));
  const x = (i) => room.left + (i / list.length) * (width - room.left - room.right);
  const y = (v) => height - room.bottom - (v / top) * (height - room.top - room.bottom);
  const time = (start) => (denials.hours > 24 ? `${new Date(start).toLocaleDateString("en-GB", { weekday: "short" })} ${clock(start)}` : clock(start));
  const slot = { 60_000: "minute", 600_000: "ten minutes", 3_600_000: "hour" }[size];
  const of = (field) => list.reduce((sum, s) => sum + s[field], 0);
  const kinds = [["by the limit", total - of("blocked") - of("above_burst") - of("overloaded")], ["by a block", of("blocked")], ["above the burst, which can never fit", of("above_burst")], ["because too many requests waited", of("overloaded")]].filter(([, n]) => n > 0);
  const words = `Denials that programs with a DenialLog or policies with count_denials counted in the last ${chosen.replace(/^1 /, "")}: ${number(total)} in all${peak ? `, most (${number(peak.total)}) in the ${slot} from ${time(peak.start)}` : ""}.`;
  const reasons = `Reasons: ${kinds.map(([name, n]) => `${number(n)} ${name}`).join(", ")}.${of("shadowed") ? ` Shadow policies let ${number(of("shadowed"))} pass.` : ""}`;
  legend = () => {
    const one = list.find((s) => s.start === pointed);
    return [
      h("li", { "data-id": "sum" }, h("strong", null, `${one ? `${time(one.start)} – ${clock(one.start + size)}` : chosen}: ${number(one ? one.total : total)}`)),
      all.map((s) => h("li", { "data-id": s.name }, h("i", { class: s.colour }), `${s.name}: ${number(s.of(one ? one.by : sums))}`)),
    ];
  };

  const lines = marks.map((v) => [
    h("line", { class: "grid", x1: room.left, x2: width - room.right, y1: y(v), y2: y(v) }),
    h("text", { x: room.left - 6, y: y(v) + 4, "text-anchor": "end" }, number(v)),
  ]);
  // A label is where a step of local time begins; 40 pixels are between two.
  const step = ([10, 30, 60, 180, 360].find((minutes) => ((denials.hours * 60) / minutes) * 40 <= width - room.left) ?? 1440) * 60_000;
  const steps = (start) => Math.floor((start - new Date(start).getTimezoneOffset() * 60_000) / step);
  const labels = list.map((s, i) => steps(s.start) > steps(s.start - size) && x(i) < width - 16 && h("text", { x: x(i), y: height - 5, "text-anchor": "middle" }, step < 86_400_000 ? clock(s.start) : time(s.start).slice(0, 3)));
  const bars = list.map((slot, i) => {
    let below = 0;
    const w = Math.max(0.5, (x(1) - x(0)) * 0.85);
    const stack = all.map((one) => {
      const v = one.of(slot.by);
      if (!v) return null;
      below += v;
      return h("rect", { class: one.colour, x: x(i).toFixed(2), width: w.toFixed(2), y: y(below).toFixed(2), height: (y(below - v) - y(below)).toFixed(2) });
    });
    return h("g", { "data-id": slot.start }, stack, h("rect", { class: "slot", x: x(i), width: x(1) - x(0), y: room.top, height: height - room.bottom - room.top }));
  });

  const used = parts.filter(([field]) => of(field) > 0);
  const busy = list.filter((s) => s.total > 0).reverse();
  const column = (name) => h("th", { scope: "col", class: "number" }, name);
  const cell = (v) => h("td", { class: "number" }, number(v));
  return [
    h("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words }, lines, labels, bars),
    h("ul", { class: "legend", "aria-label": "Denials by policy" }, legend()),
    h("p", { class: "small" }, reasons),
    h("p", { class: "quiet small" }, words),
    h("details", { "data-id": "table" }, h("summary", null, "The same as a table"),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Denials as a table" }, h("table", { "aria-label": "Denials over time" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, `${slot[0].toUpperCase()}${slot.slice(1)} from`), column("Denials"), used.map(([, name]) => column(name)), all.map((one) => column(one.name)))),
        h("tbody", null, busy.map((s) => h("tr", { "data-id": s.start }, h("th", { scope: "row" }, time(s.start)), cell(s.total), used.map(([field]) => cell(s[field])), all.map((one) => cell(one.of(s.by))))))))),
  ];
}

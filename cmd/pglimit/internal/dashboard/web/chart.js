// The chart of denials over time, and the same as a table.

import { h } from "./dom.js";
import { clock, number } from "./format.js";

const most = 5; // policies with a colour of their own
const height = 208;
const room = { top: 8, right: 4, bottom: 22, left: 40 };

// Returns the slots of a day, oldest first, the policies, most first, and their sums.
function slots({ at, slot_s, slots }) {
  const size = slot_s * 1000;
  const last = Math.floor(Date.parse(at) / size) * size;
  const day = Math.round(86_400_000 / size);
  const list = Array.from({ length: day }, (_, i) => ({ start: last - (day - 1 - i) * size, total: 0, shadowed: 0, by: new Map() }));
  const sums = new Map();
  for (const s of slots) {
    const one = list[day - 1 - Math.round((last - Date.parse(s.start)) / size)];
    if (!one) continue;
    one.total += s.denials;
    one.shadowed += s.shadowed;
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
    ...named.map((name, i) => ({ name, colour: `c${i}`, of: (slot) => slot.by.get(name) ?? 0 })),
    ...(others.length ? [{ name: `${others.length} others`, colour: "c5", of: (slot) => others.reduce((sum, name) => sum + (slot.by.get(name) ?? 0), 0) }] : []),
  ];
}

// Returns a round number that is at least v.
function roundUp(v) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, v)));
  return [1, 2, 3, 4, 6, 8, 10].map((n) => n * power).find((n) => n >= v);
}

/** Returns the chart of the denials, its legend and its table. width is the room in pixels. */
export function chart(denials, width) {
  const { list, policies, sums, size } = slots(denials);
  const all = series(policies);
  const total = list.reduce((sum, s) => sum + s.total, 0);
  const top = roundUp(list.reduce((max, s) => Math.max(max, s.total), 0));
  const peak = list.find((s) => s.total > 0 && list.every((o) => o.total <= s.total));
  const x = (i) => room.left + (i / list.length) * (width - room.left - room.right);
  const y = (v) => height - room.bottom - (v / top) * (height - room.top - room.bottom);
  const words = total === 0 ? "No denials are counted in the last 24 hours." : `Denials that programs with a DenialLog or policies with count_denials counted in the last 24 hours: ${number(total)} in all, most (${number(peak.total)}) in the ten minutes from ${clock(peak.start)}.`;

  const lines = (top % 2 ? [0, top] : [0, top / 2, top]).map((v) => [
    h("line", { class: "grid", x1: room.left, x2: width - room.right, y1: y(v), y2: y(v) }),
    h("text", { x: room.left - 6, y: y(v) + 4, "text-anchor": "end" }, number(v)),
  ]);
  const each = width < 500 ? 36 : 18; // slots between two labels
  const labels = list.map((s, i) => ((list.length - 1 - i) % each === 0 && x(i) > room.left + 15
    ? h("text", { x: Math.min(x(i), width - 20), y: height - 5, "text-anchor": "middle" }, clock(s.start)) : null));
  const bars = list.map((slot, i) => {
    let below = 0;
    const w = Math.max(0.5, x(1) - x(0) - (width < 500 ? 0.3 : 1));
    const parts = all.map((one) => {
      const v = one.of(slot);
      if (!v) return null;
      below += v;
      return h("rect", { class: one.colour, x: x(i).toFixed(2), width: w.toFixed(2), y: y(below).toFixed(2), height: (y(below - v) - y(below)).toFixed(2) });
    });
    const said = [...slot.by].sort((a, b) => b[1] - a[1]).map(([name, v]) => `${name} ${number(v)}`).join(", ");
    return h("g", { "data-id": slot.start }, parts, slot.total > 0 && h("rect", { class: "slot", x: x(i), width: x(1) - x(0), y: room.top, height: height - room.bottom - room.top },
      h("title", null, `${clock(slot.start)} – ${clock(slot.start + size)}: ${said}`)));
  });

  const busy = list.filter((s) => s.total > 0).reverse();
  return [
    h("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words }, lines, labels, bars),
    h("ul", { class: "legend", "aria-label": "Denials by policy" }, all.map((one) => h("li", null, h("i", { class: one.colour }), `${one.name}: ${number(sums.get(one.name) ?? list.reduce((n, s) => n + one.of(s), 0))}`))),
    h("p", { class: "quiet small" }, words),
    busy.length > 0 && h("details", { "data-id": "table" }, h("summary", null, "The same as a table"),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Denials as a table" }, h("table", { "aria-label": "Denials over time" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "Ten minutes from"), h("th", { scope: "col", class: "number" }, "Denials"), h("th", { scope: "col", class: "number" }, "Let pass (shadow)"),
          all.map((one) => h("th", { scope: "col", class: "number" }, one.name)))),
        h("tbody", null, busy.map((s) => h("tr", { "data-id": s.start }, h("th", { scope: "row" }, clock(s.start)), h("td", { class: "number" }, number(s.total)), h("td", { class: "number" }, number(s.shadowed)),
          all.map((one) => h("td", { class: "number" }, number(one.of(s)))))))))),
  ];
}

// Parts that several pages have: panels, tables, rows of keys, checks.

import { h } from "./dom.js";
import { algorithm, encode, foreign, keyText, number, percent, when } from "./format.js";

/** Returns a panel with a title. wide takes all columns. */
export function panel(title, wide, ...content) {
  return h("section", { class: wide ? "panel all" : "panel", "data-id": title, "aria-label": title }, h("h3", null, title), content);
}

export const empty = (text) => h("p", { class: "quiet" }, text);

/** Returns a table that is a list on narrow screens. A column is [name, cell of a row, class]; the first is the row's header. In a list, "plain" has no name, and "lead" is right after the header. */
export function table(label, columns, rows, id) {
  // The roles are those that the elements lose when they are not displayed as a table.
  return h("table", { class: "wide", role: "table", "aria-label": label },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([name, , kind]) => h("th", { scope: "col", role: "columnheader", class: kind || null }, name)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row", "data-id": id(row) }, columns.map(([name, cell, kind], i) => (i === 0
      ? h("th", { scope: "row", role: "rowheader", "data-label": name }, h("span", null, cell(row)))
      : h("td", { role: "cell", class: kind || null, "data-label": name }, h("span", null, cell(row)))))))));
}

/** Returns a link to a key. A brief one has two lines at most. */
export const keyLink = (key, brief = true) => (key === "" ? h("span", { class: "quiet" }, "keys for which there was no room") : h("a", { href: `#/key/${encode(key)}` }, keyText(key, brief)));
export const policyLink = (name) => h("a", { href: `#/policies/${encodeURIComponent(name)}` }, name);

export function share(row) {
  if (row.share === null) return "–";
  return h("span", { class: "share" }, h("meter", { min: 0, max: 1, low: 0.7, high: 0.95, optimum: 0, value: Math.min(1, row.share), "aria-hidden": "true" }), " ", percent(row.share));
}

export function state(row, now) {
  const ends = row.blocked_by ? row.blocked_by.until && [row.blocked_by.until, row.blocked_until].sort().at(-1) : row.blocked_until; // undefined sorts last
  return row.blocked ? h("span", { class: "tag bad" }, "blocked, ", ends ? ["ends ", when(ends, now)] : "no end") : row.status !== "ok" ? h("span", { class: row.status === "limited" ? "tag warn" : "tag" }, row.status) : row.updated_at ? "" : h("span", { class: "quiet" }, "not in use");
}

/** Returns the table of keys. within is the time of their recent denials. */
export function keysTable(label, { rows, at }, within = "5 min") {
  return table(label, [
    ["Key", (r) => keyLink(r.key)],
    ["Policy", (r) => [policyLink(r.policy), " ", h("span", { class: "algorithm quiet small" }, algorithm(r.algorithm))], "plain"],
    ["In use", share, "plain lead"],
    ["Units", (r) => (r.burst === null ? "–" : `${number(r.level)} of ${number(r.burst)}`), "number"],
    [`Denials (${within})`, (r) => number(r.recent_denials), "number"],
    ["Last request", (r) => when(r.last_request_at, at), "plain"],
    ["State", (r) => state(r, at), "plain"],
  ], rows, (r) => [r.policy, r.algorithm, r.key].join("\n"));
}

/** Who counts denials. */
export const counted = "Programs with a DenialLog count theirs, and SQL functions those of policies with count_denials.";

// An override, in words.
const overrideText = (o) => [
  o.match && `keys by ${o.match}`, o.unlimited && "unlimited", o.blocked && "blocked", o.limit !== null && `limit ${number(o.limit)}`, o.factor !== null && `limit ${number(o.factor)}x`,
  o.burst !== null && `burst ${number(o.burst)}`, o.shadow !== null && (o.shadow ? "shadow" : "not shadow"),
].filter(Boolean).join(", ");

/** Returns the table of overrides. first is its first column. */
export function overridesTable(overrides, at, write, first) {
  const button = (o, verb, text) => h("button", { class: "small", "data-do": verb, "data-id": verb, "data-policy": o.policy, "data-key": o.key, "data-match": o.match || null }, text);
  return table("Overrides", [
    first,
    ["Override", overrideText, "plain"],
    ["Until", (o) => (o.until ? when(o.until, at) : "no end")],
    ["Note", (o) => o.note && foreign(o.note)],
    ["Changed by", (o) => o.changed_by && foreign(o.changed_by)],
    ...(write ? [["Change", (o) => h("div", { class: "buttons" }, !o.match && button(o, "edit override", "Change …"), button(o, "delete override", "Delete …")), "plain"]] : []),
  ], overrides, (o) => `${o.policy} ${o.match} ${o.key}`);
}

const marks = { fail: "✕", warn: "!", unchecked: "?", ok: "✓" };

/** Returns a check of the doctor, with its fix. */
export function check(c) {
  const known = Object.hasOwn(marks, c.verdict);
  return h("li", { "data-id": c.name },
    h("span", { class: known ? `status ${c.verdict}` : "status" }, h("span", { "aria-hidden": "true" }, known ? marks[c.verdict] : "?", " "), c.verdict), " · ",
    h("strong", null, foreign(c.name)), ": ", foreign(c.message),
    c.details?.length > 0 && h("ul", { class: "quiet small" }, c.details.map((line) => h("li", null, foreign(line)))),
    c.fix_as && h("p", { class: "small" }, "As ", foreign(c.fix_as), ":"),
    c.fix && h("div", { class: "fix" }, h("pre", { tabindex: "0", role: "group", "aria-label": `Fix for ${c.name}` }, c.fix),
      h("button", { class: "small", "data-do": "copy", "data-text": c.fix, "aria-label": `Copy the fix for ${c.name}` }, "Copy")),
    c.next_step && h("p", { class: "small" }, "Next: ", foreign(c.next_step)));
}

const order = Object.keys(marks);

/** Sorts checks, worst first; those of an unknown verdict are first of all. */
export const worstFirst = (checks) => [...checks].sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict));

/** Returns how many checks failed or warn, in words. */
export function tally(checks) {
  const of = (verdict) => checks.filter((c) => c.verdict === verdict).length;
  const [failed, warnings, unchecked] = [of("fail"), of("warn"), of("unchecked")];
  const some = [failed && `${failed} failed`, warnings && `${warnings} warning${warnings > 1 ? "s" : ""}`, unchecked && `${unchecked} unchecked`].filter(Boolean);
  return `${some.join(", ") || "All is well"} in ${checks.length} check${checks.length === 1 ? "" : "s"}`;
}

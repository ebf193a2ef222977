// The forms that change policies and overrides, and what a change would do.

import { call } from "./api.js";
import { ask, field } from "./dialog.js";
import { h } from "./dom.js";
import { algorithm, algorithms, clock, keyText, number } from "./format.js";

// The fields of a policy: name, label, and a kind or the values to choose from.
const policyFields = [
  ["algorithm", "Algorithm", [...algorithms, "attempts", "concurrency", "balance"].map((a) => [a, algorithm(a)])],
  ["limit", "Limit, in units", "number"],
  ["period", "Per period, such as 1m"],
  ["calendar", "Or per calendar", [["", "–"], ["hour", "hour"], ["day", "day"], ["week", "week"], ["month", "month"], ["quarter", "quarter"], ["year", "year"]]],
  ["time_zone", "Its time zone, such as UTC"],
  ["anchor", "Where a period of it begins, such as 2024-01-31"],
  ["burst", "Burst, in units (empty: the limit)", "number"],
  ["tick", "Leak in steps of, such as 1s"],
  ["block_for", "Block after a denial for"],
  ["block_growth", "Attempts: each wait longer by (empty: 2)", "number"],
  ["block_max", "Attempts: longest wait (empty: the period)"],
  ["on_error", "Without the database", [["", "return the error"], ["fail_open", "let pass"], ["fail_local", "decide in memory"]]],
  ["local_share", "Its share of the limit in memory", "number"],
  ["overdraft", "Balances: units that may be owed", "number"],
  ["ledger", "Balances: keep a ledger", "yes"],
  ["lease", "Lease: share of the burst in memory", "number"],
  ["max_keys", "Keys that have a row, at most", "number"],
  ["rest_limit", "Limit of all other keys together (empty: deny them)", "number"],
  ["marks", "Marks to record, such as 80%,100%"],
  ["usage_by", "Keep the usage of each", [["", "–"], ["hour", "hour"], ["day", "day"]]],
  ["usage_for", "For how long, such as 90d (empty: 31d or 400d)"],
  ["durability", "Durability", [["", "durable"], ["relaxed", "relaxed"]]],
  ["max_ttl", "Longest reservation of askers"],
  ["aligned", "Windows on the clock", "yes"],
  ["shadow", "Shadow: deny nothing", "yes"],
  ["askers", "Askers may request", "yes"],
  ["count_denials", "SQL functions count denials", "yes"],
  ["note", "Note: why", "note"],
];

const plain = { autocomplete: "off", autocapitalize: "off", spellcheck: "false" };

function control(name, kind, value) {
  if (Array.isArray(kind)) return h("select", { name }, kind.map(([v, text]) => h("option", { value: v, selected: v === (value ?? "") }, text)));
  if (kind === "yes") return h("input", { name, type: "checkbox", checked: value === true });
  return h("input", { name, value: value ?? "", inputmode: kind === "number" ? "decimal" : null, maxlength: kind === "note" ? 1000 : 200, type: kind === "time" ? "datetime-local" : null, ...plain });
}

const rows = (fields, values) => fields.map(([name, label, kind]) => {
  const element = field(label, control(name, kind, values[name]));
  if (kind === "yes" || kind === "note") element.classList.add(kind);
  return element;
});

// Returns what was entered; the server explains what is not a number.
const entered = (text) => (text === "" || Number.isNaN(Number(text)) ? text || undefined : Number(text));

/** Returns the differences of a change, field by field. */
export const differences = (fields) => h("ul", { class: "mono" }, fields.map(({ name, before, after }) => h("li", { "data-id": name }, `${name}: `,
  before !== null && h("del", null, h("span", { class: "unseen" }, "before "), String(before)), before !== null && after !== null && " → ", after !== null && h("ins", null, h("span", { class: "unseen" }, "after "), String(after)))));

// What a change would have denied in the last day, and what that is made of.
function effect(e) {
  const kinds = [["by a block", e.blocked], ["above the burst", e.above_burst], ["by an overload", e.overloaded], ["let pass by a shadow", e.shadowed]].filter(([, n]) => n > 0).map(([name, n]) => `${number(n)} ${name}`);
  return [
    h("p", null, h("strong", null, "In the last day it would have denied: ", e.denied === null ? "this cannot be known" : number(e.denied)), `, because ${e.basis}.`),
    e.since && h("p", { class: "small" }, `Counted since ${clock(e.since)}, under the present limits: ${number(e.denials)} denials${kinds.length ? ` (${kinds.join(", ")})` : ""}.`),
    e.burst > 0 && e.keys > 0 && h("p", { class: "small" }, `Now ${number(e.above)} of ${number(e.keys)} keys are above the burst of ${number(e.burst)}. They are denied until they are below.`),
  ].filter(Boolean);
}

// Asks about a change. edit returns the body of the request for the values of the form.
function change(question, edit) {
  return ask({
    ...question,
    async review(form) {
      const p = await call("preview", edit(form), true);
      if (!p.fields.length) return [undefined, [h("p", null, "This changes nothing.")]];
      return [p, [h("h3", null, "The difference"), differences(p.fields), ...effect(p.effect)]];
    },
    send: async (form, p) => call("apply", { ...edit(form), version: p.version }, true),
  });
}

/** Asks for the fields of a policy, p, or of a new one. Resolves when it is stored. */
export function editPolicy(p) {
  return change({
    title: p ? `Change policy ${p.name}` : "New policy", yes: "Save",
    text: "What keys have used is carried over, unless the algorithm changes. Programs follow within a second.",
    fields: [!p && field("Name", control("name")), ...rows(policyFields, p ? { ...p, note: "" } : { algorithm: "token_bucket" })].filter(Boolean),
  }, (form) => {
    const policy = { ...p, name: p?.name ?? form.get("name").trim() }; // with fields that the form does not have
    for (const name of ["version", "changed_at", "changed_by"]) delete policy[name];
    for (const [name, , kind] of policyFields) {
      const text = (form.get(name) ?? "").trim().toWellFormed();
      policy[name] = kind === "number" ? entered(text) : kind === "yes" ? form.has(name) || undefined : text || undefined;
    }
    return { policy };
  });
}

export const deletePolicy = (name) => change({
  title: `Delete policy ${name}?`, yes: "Delete", text: "Overrides and what keys have used stay.",
  fields: rows([["note", "Note: why", "note"]], {}),
}, (form) => ({ policy: { name, note: form.get("note").toWellFormed() }, delete: true }));

const states = [["", "as the policy"], ["unlimited", "unlimited"], ["blocked", "blocked"], ["shadow", "shadow"], ["enforced", "not shadow"]];
const local = (time) => (time ? new Date(Date.parse(time) - new Date(time).getTimezoneOffset() * 60_000).toISOString().slice(0, 16) : "");

/** Asks for an override, o, which may have only a policy or key; stored says that the key is as the tables have it. Resolves when it is stored. */
export function editOverride(o, stored) {
  const state = o.unlimited ? "unlimited" : o.blocked ? "blocked" : o.shadow === true ? "shadow" : o.shadow === false ? "enforced" : "";
  const until = local(o.until);
  const named = o.key && keyText(o.key, true);
  return change({
    title: named ? ["Override for ", named] : "New override", yes: "Save",
    text: o.policy ? `It replaces an earlier one of the key under ${o.policy}.` : "It replaces an earlier one of the key under the policy.",
    fields: [
      !o.policy && field("Policy", control("policy")), !named && field("Key", control("key")),
      ...rows([["limit", "Limit, in units, or such as 10x"], ["burst", "Burst, in units", "number"], ["anchor", "Where a period begins, such as 2024-01-31"], ["state", "Requests are", states], ["until", "Until (empty: no end)", "time"], ["note", "Note: why", "note"]],
        { limit: o.limit ?? (o.factor ? `${o.factor}x` : ""), burst: o.burst, anchor: o.anchor, state, until, note: o.note }),
    ].filter(Boolean),
  }, (form) => {
    const text = (name) => (form.get(name) ?? "").trim().toWellFormed();
    const factor = text("limit").match(/^(.+)x$/)?.[1];
    const chosen = text("state");
    return {
      stored: Boolean(named && stored),
      override: {
        policy: o.policy ?? text("policy"), key: o.key ?? form.get("key").toWellFormed(), note: text("note") || undefined,
        limit: factor ? undefined : entered(text("limit")), factor: factor && entered(factor), burst: entered(text("burst")), anchor: text("anchor") || undefined,
        unlimited: chosen === "unlimited" || undefined, blocked: chosen === "blocked" || undefined, shadow: chosen === "shadow" ? true : chosen === "enforced" ? false : undefined,
        until: text("until") === until ? o.until || undefined : text("until") ? new Date(text("until")).toISOString() : undefined,
      },
    };
  });
}

export const deleteOverride = (o, stored) => change({
  title: ["Delete the override for ", keyText(o.key, true), "?"], yes: "Delete", text: `The limits of ${o.policy} then apply to ${o.match ? `all keys by this ${o.match}` : "the key"}.`,
  fields: rows([["note", "Note: why", "note"]], {}),
}, (form) => ({ override: { policy: o.policy, key: o.key, match: o.match || undefined, note: form.get("note").toWellFormed() }, stored, delete: true }));

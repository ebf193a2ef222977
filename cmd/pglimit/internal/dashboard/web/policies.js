// The policies, and the history of one.

import { call } from "./api.js";
import { chart, hoursOf, spanOf } from "./chart.js";
import { h } from "./dom.js";
import { differences } from "./edit.js";
import { algorithm, duration, foreign, keyText, limit, when } from "./format.js";
import { counted, empty, keyLink, keysTable, overridesTable, panel, policyLink, table } from "./parts.js";

function options(p) {
  const list = [
    p.tick && `leaks every ${duration(p.tick)}`, p.aligned && "aligned windows", p.block_for && `blocks for ${duration(p.block_for)}`, p.block_growth && `waits grow ${p.block_growth} times`, p.block_max && `up to ${duration(p.block_max)}`, p.lease && `lends ${p.lease} of the burst`, p.shadow && "shadow: denies nothing",
    p.on_error === "fail_open" && "fails open", p.on_error === "fail_local" && `fails local: ${p.local_share || 0.1} of the limit`, p.durability === "relaxed" && "relaxed", p.askers && "askers may request",
  ];
  return list.filter(Boolean).map((text) => h("span", { class: "tag" }, text));
}

function changed(p, at) {
  return [when(p.changed_at, at), p.changed_by && [" by ", foreign(p.changed_by)]];
}

// A change, field by field.
function change(c, at) {
  return h("li", { "data-id": c.version },
    h("div", null, h("strong", null, `Version ${c.version}`), " · ", policyLink(c.policy), c.key && [" for the key ", keyLink(c.key, false)], ` ${c.kind} `, when(c.at, at), c.by && [" by ", foreign(c.by)], c.note && h("div", { class: "quiet" }, foreign(c.note))),
    c.fields.length > 0 && differences(c.fields));
}

const history = (changes, at) => (changes.length ? h("ul", { class: "list" }, changes.map((c) => change(c, at))) : empty("No change is recorded."));

export const policies = {
  title: () => "Policies",
  async load() {
    const [all, { changes }] = await Promise.all([call("policies"), call("history", { limit: 20 })]);
    return { ...all, changes };
  },
  render({ policies, overrides, version, at, changes }, { setup }) {
    return [
      panel("Policies in the database", true, setup.write && h("p", null, h("button", { class: "small", "data-do": "edit policy" }, "New policy …")), policies.length
        ? table("Policies", [
          ["Policy", (p) => policyLink(p.name)],
          ["Algorithm", (p) => algorithm(p.algorithm)],
          ["Limit", (p) => limit(p)],
          ["Options", options],
          ["Overrides", (p) => overrides[p.name], "number"],
          ["Changed", (p) => changed(p, at)],
          ["Note", (p) => p.note && foreign(p.note)],
        ], policies, (p) => p.name)
        : empty("There are none: policies are compiled into the programs."), h("p", { class: "quiet small" }, `Version ${version}.`)),
      panel("Last changes", true, history(changes, at)),
    ];
  },
};

export const policy = {
  title: ({ name }) => `Policy ${name}`,
  params: (query) => ({ hours: hoursOf(query) }),
  async load({ name, hours }) {
    const [all, { changes }, o, denials, denied] = await Promise.all([
      call("policies"), call("history", { policy: name, limit: 50 }), call("overrides", { policy: name }), call("denials", { hours }), call("keys", { order: "denials", policy: name, hours, limit: 20 }),
    ]);
    return { at: all.at, p: all.policies.find((p) => p.name === name), count: all.overrides[name], overrides: o.overrides, more: o.more, changes, denied, slots: { ...denials, slots: denials.slots.filter((s) => s.policy === name) } };
  },
  render({ p, count, overrides, more, at, changes, denied, slots }, { name, setup, width }) {
    const fact = (label, value) => value && [h("dt", null, label), h("dd", null, value)];
    const button = (verb, text) => h("button", { class: "small", "data-do": verb, "data-id": verb, "data-policy": name }, text);
    return [
      panel("Now", true, p
        ? h("dl", { class: "facts" }, fact("Algorithm", algorithm(p.algorithm)), fact("Limit", limit(p)), options(p).length > 0 && fact("Options", options(p)),
          fact("Overrides", String(count)), fact("Longest reservation of askers", p.askers && duration(p.max_ttl ?? "24h")), fact("Note", p.note && foreign(p.note)), fact("Version", String(p.version)), fact("Changed", changed(p, at)))
        : empty("The database has no policy of this name: it was removed, or programs have it compiled in."),
      setup.write && p && h("div", { class: "buttons" }, button("edit policy", "Change …"), button("delete policy", "Delete …")),
      h("p", null, h("a", { href: `#/keys?policy=${encodeURIComponent(name)}` }, "Keys of this policy"))),
      panel("Denials over time", true, chart(slots, width, counted)),
      panel("Most denied keys", true, denied.rows.length ? keysTable("Most denied keys", denied, spanOf(slots.hours)) : empty("None in this time.")),
      panel("Overrides", true, overrides.length ? overridesTable(overrides, at, setup.write, ["Key", (o) => (o.match ? keyText(o.key) : keyLink(o.key))]) : empty("None: all keys have the limits of the policy."),
        more && h("p", { class: "quiet" }, `These are the first ${overrides.length}. List all: pglimit override list --policy ${name}`), setup.write && h("p", null, button("edit override", "New override …"))),
      panel("History", true, history(changes, at)),
    ];
  },
};

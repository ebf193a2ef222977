// The policies, and the history of one.

import { call } from "./api.js";
import { h } from "./dom.js";
import { algorithm, duration, foreign, limit, when } from "./format.js";
import { empty, keyLink, panel, policyLink, table } from "./parts.js";

function options(p) {
  const list = [
    p.tick && `leaks every ${duration(p.tick)}`, p.aligned && "aligned windows", p.block_for && `blocks for ${duration(p.block_for)}`, p.lease && `lends ${p.lease} of the burst`, p.shadow && "shadow: denies nothing",
    p.on_error === "fail_open" && "fails open", p.on_error === "fail_local" && `fails local: ${p.local_share || 0.1} of the limit`, p.durability === "relaxed" && "relaxed", p.askers && "askers may request",
  ];
  return list.filter(Boolean).map((text) => h("span", { class: "tag" }, text));
}

function changed(p, at) {
  return [when(p.changed_at, at), p.changed_by && [" by ", foreign(p.changed_by)]];
}

// A change, field by field.
function change(c, at) {
  const fields = c.fields.map(({ name, before, after }) => ({ name, before: duration(String(before ?? "")), after: duration(String(after ?? "")) }));
  return h("li", { "data-id": c.version },
    h("div", null, h("strong", null, `Version ${c.version}`), " · ", policyLink(c.policy), c.key && [" for the key ", keyLink(c.key, false)], ` ${c.kind} `, when(c.at, at), c.by && [" by ", foreign(c.by)], c.note && h("div", { class: "quiet" }, foreign(c.note))),
    fields.length > 0 && h("ul", { class: "mono" }, fields.map((f) => h("li", { "data-id": f.name }, `${f.name}: `, f.before && h("del", null, h("span", { class: "unseen" }, "before "), f.before), f.before && f.after && " → ", f.after && h("ins", null, h("span", { class: "unseen" }, "after "), f.after)))));
}

const history = (changes, at) => (changes.length ? h("ul", { class: "list" }, changes.map((c) => change(c, at))) : empty("No change is recorded."));

export const policies = {
  title: () => "Policies",
  async load() {
    const [all, { changes }] = await Promise.all([call("policies"), call("history", { limit: 20 })]);
    return { ...all, changes };
  },
  render({ policies, overrides, version, at, changes }) {
    return [
      panel("Policies in the database", true, policies.length
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
  async load({ name }) {
    const [all, { changes }] = await Promise.all([call("policies"), call("history", { policy: name, limit: 50 })]);
    return { at: all.at, p: all.policies.find((p) => p.name === name), overrides: all.overrides[name], changes };
  },
  render({ p, overrides, at, changes }, { name }) {
    const fact = (label, value) => value && [h("dt", null, label), h("dd", null, value)];
    return [
      panel("Now", true, p
        ? h("dl", { class: "facts" }, fact("Algorithm", algorithm(p.algorithm)), fact("Limit", limit(p)), options(p).length > 0 && fact("Options", options(p)),
          fact("Overrides", String(overrides)), fact("Longest reservation of askers", p.askers && duration(p.max_ttl ?? "24h")), fact("Note", p.note && foreign(p.note)), fact("Version", String(p.version)), fact("Changed", changed(p, at)))
        : empty("The database has no policy of this name: it was removed, or programs have it compiled in."),
      h("p", null, h("a", { href: `#/keys?policy=${encodeURIComponent(name)}` }, "Keys of this policy"))),
      panel("History", true, history(changes, at)),
    ];
  },
};

// The keys, and the page of one.

import { call } from "./api.js";
import { h } from "./dom.js";
import { algorithm, clock, decode, encode, foreign, keyText, number, when } from "./format.js";
import { empty, keysTable, panel, policyLink, share, state, table } from "./parts.js";

const orders = { share: "Share in use", denials: "Denials in a day", recent: "Last request" };

/** Returns the fragment of the keys' page with filters. */
export function keysLink({ order, policy, prefix }) {
  const query = new URLSearchParams();
  if (order && order !== "share") query.set("order", order);
  if (policy) query.set("policy", policy);
  if (prefix) query.set("prefix", encode(prefix));
  return "#/keys" + (query.size ? "?" + query : "");
}

export const keys = {
  title: () => "Keys",
  params: (query) => ({ order: Object.hasOwn(orders, query.get("order")) ? query.get("order") : "share", policy: query.get("policy") ?? "", prefix: decode(query.get("prefix") ?? "") ?? "" }),
  load: async ({ order, policy, prefix }) => call("keys", { order, policy, prefix, limit: 100 }),
  render(found, { order, policy, prefix, setup }) {
    return [
      h("form", { class: "filters", id: "filters", role: "search", "aria-label": "Filter keys", "data-id": "filters" },
        h("label", { class: "field" }, "Key begins with", h("input", { name: "prefix", value: prefix, maxlength: 1024, autocomplete: "off", autocapitalize: "off", spellcheck: "false" })),
        h("label", { class: "field" }, "Policy", h("input", { name: "policy", value: policy, maxlength: 64, autocomplete: "off", autocapitalize: "off", spellcheck: "false" })),
        h("label", { class: "field" }, "First are those by", h("select", { name: "order" }, Object.entries(orders).map(([value, text]) => h("option", { value, selected: value === order }, text))))),
      setup.hashed && h("p", { class: "quiet" }, "The tables have HMACs of keys. To find a key by its name, open it above."),
      panel("Keys", true, found.rows.length ? keysTable("Keys", found) : empty("No key matches."), found.more && h("p", { class: "quiet" }, `These are the first ${found.rows.length}: filter to see others.`)),
    ];
  },
};

const target = (r) => ({ "data-policy": r.policy, "data-algorithm": r.algorithm });

function buttons(r) {
  const button = (verb, text, off) => h("button", { class: "small", "data-do": verb, "data-id": verb, ...target(r), "aria-disabled": off ? "true" : null, "aria-label": `${text} under ${r.policy}, ${algorithm(r.algorithm)}` }, text);
  return h("div", { class: "buttons" }, button("block", "Block"), button("unblock", "Unblock", !r.blocked_until), button("reset", "Reset", !r.updated_at));
}

export const key = {
  title: ({ key }) => ["Key ", keyText(key)],
  load: async ({ key, stored }) => call("key", { key, stored }),
  render(k, { key, setup }) {
    const columns = [
      ["Policy", (r) => [policyLink(r.policy), " ", h("span", { class: "quiet small" }, algorithm(r.algorithm))]],
      ["In use", share],
      ["Units", (r) => (r.burst === null ? "–" : `${number(r.level)} of ${number(r.burst)}`), "number"],
      ["Remaining", (r) => number(r.remaining), "number"],
      ["State", (r) => state(r, k.at)],
      ["Last request", (r) => when(r.updated_at, k.at)],
      ["Empty again", (r) => when(r.empty_at, k.at)],
      ["Reservations", (r) => number(r.reservations), "number"],
      ["Denials, a day", (r) => number(r.denials), "number"],
    ];
    if (setup.write) columns.push(["Change", buttons]);
    const override = (o) => [
      o.match && `as a ${o.match}`, o.unlimited && "unlimited", o.blocked && "blocked", o.limit !== null && `limit ${number(o.limit)}`, o.factor !== null && `limit ${number(o.factor)}x`, o.burst !== null && `burst ${number(o.burst)}`, o.shadow !== null && (o.shadow ? "shadow" : "not shadow"),
    ].filter(Boolean).join(", ");
    return [
      k.stored !== key && h("p", { class: "quiet" }, "Stored as ", keyText(k.stored)),
      panel("Limits", true, k.keys.length ? table("Limits of the key", columns, k.keys, (r) => `${r.policy} ${r.algorithm}`) : empty("The key has no row: it was not used lately, under any policy."),
        setup.write && h("p", null, h("button", { class: "small", "data-do": "block", "data-id": "block other" }, "Block under another policy …"))),
      panel("Open reservations", true, k.reservations.length ? table("Open reservations", [
        ["ID", (r) => keyText(r.id)],
        ["Policy", (r) => policyLink(r.policy)],
        ["Units", (r) => number(r.units), "number"],
        ["Expires", (r) => when(r.expires_at, k.at)],
      ], k.reservations, (r) => r.id) : empty("None.")),
      panel("Overrides", true, k.overrides.length ? table("Overrides", [
        ["Policy", (o) => policyLink(o.policy)],
        ["Override", override],
        ["Until", (o) => (o.until ? when(o.until, k.at) : "no end")],
        ["Note", (o) => o.note && foreign(o.note)],
        ["Changed by", (o) => o.changed_by && foreign(o.changed_by)],
      ], k.overrides, (o) => `${o.policy} ${o.match}`) : empty("None: the key has the limits of its policies.")),
      panel("Denials in the last day", true, k.denials.length ? table("Denials in the last day", [
        ["Ten minutes from", (d) => clock(d.start)],
        ["Policy", (d) => policyLink(d.policy)],
        ["Denials", (d) => number(d.denials), "number"],
        ["Let pass (shadow)", (d) => number(d.shadowed), "number"],
        ["Units", (d) => number(d.units), "number"],
      ], k.denials, (d) => `${d.start} ${d.policy}`) : empty("None are counted: those of programs with a DenialLog, and of SQL functions under policies with count_denials, would be.")),
    ];
  },
};

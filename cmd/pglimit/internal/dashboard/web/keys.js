// The keys, and the page of one.

import { call } from "./api.js";
import { chart, hoursOf } from "./chart.js";
import { h } from "./dom.js";
import { algorithm, decode, encode, foreign, keyText, limit, number, when } from "./format.js";
import { empty, keysTable, panel, policyLink, share, state, table } from "./parts.js";

const orders = { share: "Share in use", denials: "Denials (24 h)", recent: "Last request" };

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
        h("label", { class: "field" }, "Sort by", h("select", { name: "order" }, Object.entries(orders).map(([value, text]) => h("option", { value, selected: value === order }, text))))),
      setup.hashed && h("p", { class: "quiet" }, "The tables have HMACs of keys. To find a key by its name, open it above."),
      panel("Keys", true, found.rows.length ? keysTable("Keys", found) : empty("No key matches."), found.more && h("p", { class: "quiet" }, `These are the first ${found.rows.length}: filter to see others.`)),
    ];
  },
};

// An override, in words.
export const overrideText = (o) => [
  o.match && `as a ${o.match}`, o.unlimited && "unlimited", o.blocked && "blocked", o.limit != null && `limit ${number(o.limit)}`, o.factor != null && `limit ${number(o.factor)}x`, o.burst != null && `burst ${number(o.burst)}`, o.shadow != null && (o.shadow ? "shadow" : "not shadow"),
].filter(Boolean).join(", ");

const target = (r) => ({ "data-policy": r.policy, "data-algorithm": r.algorithm });

function buttons(r) {
  const button = (verb, text, off) => h("button", { class: "small", "data-do": verb, "data-id": verb, ...target(r), "aria-disabled": off ? "true" : null, "aria-label": `${text} under ${r.policy}, ${algorithm(r.algorithm)}` }, text);
  return h("div", { class: "buttons" }, button("block", "Block"), button("unblock", "Unblock", !r.blocked_until), button("reset", "Reset", !r.updated_at));
}

// A key under one policy and algorithm.
function row(r, k, setup) {
  const fact = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  const named = Object.hasOwn(k.limits, r.policy) && k.limits[r.policy];
  const of = named && named.policy.algorithm === r.algorithm && named;
  const override = of && (of.unlimited || limit(of.effective) !== limit(of.policy)) && ` by its override, instead of ${limit(of.policy)}`;
  return h("li", { class: "limit", "data-id": `${r.policy} ${r.algorithm}` },
    h("div", null, h("h4", null, policyLink(r.policy)), " ", h("span", { class: "quiet small" }, algorithm(r.algorithm)), " ", state(r, k.at)),
    h("p", null, of ? [of.unlimited ? "Unlimited" : limit(of.effective), override] : h("span", { class: "quiet" }, "The database has no such policy: programs have its limit compiled in.")),
    r.share !== null && h("p", null, share(r), r.burst !== null && ` ${number(r.level)} of ${number(r.burst)}`),
    h("dl", null, fact("Remaining", number(r.remaining)), fact("Last request", when(r.updated_at, k.at)), fact("Empty again", when(r.empty_at, k.at)), fact("Reservations", number(r.reservations)), fact("Denials (24 h)", number(r.denials))),
    setup.write && buttons(r));
}

export const key = {
  title: ({ key }) => ["Key ", keyText(key)],
  params: (query) => ({ hours: hoursOf(query) }),
  async load({ key, stored, hours }) {
    const [k, denials] = await Promise.all([call("key", { key, stored }), call("denials", { key, stored, hours })]);
    return { ...k, slots: denials };
  },
  render(k, { key, setup, width }) {
    return [
      k.stored !== key && h("p", { class: "quiet" }, "Stored as ", keyText(k.stored)),
      panel("Limits", true, k.keys.length ? h("ul", { class: "list" }, k.keys.map((r) => row(r, k, setup))) : empty("The key has no row: it was not used lately, under any policy."),
        setup.write && h("p", null, h("button", { class: "small", "data-do": "block", "data-id": "block other" }, "Block under another policy …"))),
      panel("Open reservations", true, k.reservations.length ? table("Open reservations", [
        ["ID", (r) => keyText(r.id)],
        ["Policy", (r) => policyLink(r.policy)],
        ["Units", (r) => number(r.units), "number"],
        ["Expires", (r) => when(r.expires_at, k.at)],
      ], k.reservations, (r) => r.id) : empty("None.")),
      panel("Overrides", true, k.overrides.length ? table("Overrides", [
        ["Policy", (o) => policyLink(o.policy)],
        ["Override", overrideText],
        ["Until", (o) => (o.until ? when(o.until, k.at) : "no end")],
        ["Note", (o) => o.note && foreign(o.note)],
        ["Changed by", (o) => o.changed_by && foreign(o.changed_by)],
      ], k.overrides, (o) => `${o.policy} ${o.match}`) : empty("None: the key has the limits of its policies.")),
      panel("Denials over time", true, chart(k.slots, width, "Programs with a DenialLog count theirs, and SQL functions those of policies with count_denials.")),
    ];
  },
};

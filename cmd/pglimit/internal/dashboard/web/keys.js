// The keys, and the page of one.

import { call } from "./api.js";
import { chart, hoursOf } from "./chart.js";
import { h } from "./dom.js";
import { algorithm, decode, encode, foreign, keyText, limit, number, when } from "./format.js";
import { counted, empty, keysTable, overridesTable, panel, policyLink, share, state, table } from "./parts.js";

const orders = { share: "Share in use", denials: "Denials (5 min)", recent: "Last request" };

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
      setup.hashed && h("p", { class: "quiet" }, "The tables have HMACs of keys. To find a key by its name, open it above. Only there it shows a block by prefix, pattern or network."),
      panel("Keys", true, found.rows.length ? keysTable("Keys", found) : empty("No key matches."), found.more && h("p", { class: "quiet" }, `These are the first ${found.rows.length}: filter to see others.`)),
    ];
  },
};

const target = (r) => ({ "data-policy": r.policy, "data-algorithm": r.algorithm });

function buttons(r) {
  const button = (verb, text, off, on) => h("button", { class: "small", "data-do": verb, "data-id": verb, ...target(r), ...on, "aria-disabled": off ? "true" : null, "aria-label": `${text} under ${r.policy}, ${algorithm(r.algorithm)}` }, text);
  return h("div", { class: "buttons" }, button("block", "Block"), r.blocked_by ? button("delete override", "Unblock …", false, { "data-key": r.blocked_by.key, "data-match": r.blocked_by.match || null }) : button("unblock", "Unblock", !r.blocked), button("reset", "Reset", !r.updated_at), button("edit override", "Override …"));
}

const reasons = [["by_limit", "by the limit"], ["blocked", "by a block"], ["above_burst", "above the burst"], ["overloaded", "by an overload"], ["shadowed", "let pass by a shadow"]];

// What a key's units are, where they are no requests that were counted.
const units = { concurrency: " held", balance: " owed" };

// How a key stands under a policy and algorithm, and why.
function row(w, at, setup) {
  const fact = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  const r = w.now;
  const by = r.blocked_by ?? w.override;
  const of = w.override?.unlimited ? "Unlimited" : by?.blocked ? "Blocked" : w.in_force && limit(w.in_force);
  const why = reasons.filter(([name]) => w.denied?.[name] > 0).map(([name, text]) => `${number(w.denied[name])} ${text}`);
  return h("li", { class: "limit", "data-id": `${r.policy} ${r.algorithm}` },
    h("div", null, h("h4", null, policyLink(r.policy)), " ", h("span", { class: "quiet small" }, algorithm(r.algorithm)), " ", state(r, at)),
    of ? h("p", null, of, by && [" by an override", by.match && [` for keys by ${by.match} `, keyText(by.key, true)]], !by && w.origin === "default" && h("span", { class: "quiet" }, ", compiled into ", foreign(w.program)))
      : empty("The policy is not in the database: a program passes it with each request."),
    r.share !== null && h("p", null, share(r), r.burst !== null && ` ${number(r.level)} of ${number(r.burst)}${units[r.algorithm] ?? ""}`),
    h("dl", null, fact("Remaining", number(r.remaining)), fact("Last request", when(r.last_request_at, at)), fact("Empty again", when(r.empty_at, at)), fact(r.algorithm === "concurrency" ? "Slots" : "Reservations", number(r.reservations)), fact("Denials (24 h)", number(r.denials))),
    w.denied && h("p", { class: "small" }, `Denied in the last 24 hours: ${why.join(", ")}. `, w.denied.retry_at && Date.parse(w.denied.retry_at) > Date.parse(at) && ["All that can fit do so ", when(w.denied.retry_at, at), "."]),
    setup.write && buttons(r));
}

// What a key has spent under a policy: a bar for each of the last thirty days.
function usage({ policy, sums }, at) {
  const days = 30;
  const day = (time) => Math.floor(Date.parse(time) / 86_400_000);
  const units = new Map(sums.map((s) => [day(s.at), s.units]));
  const list = Array.from({ length: days }, (_, i) => day(at) - days + 1 + i).map((d) => ({ date: new Date(d * 86_400_000).toISOString().slice(0, 10), units: units.get(d) ?? 0 }));
  const most = list.reduce((a, b) => (b.units > a.units ? b : a));
  const words = `${number(list.reduce((sum, d) => sum + d.units, 0))} units in the last ${days} days, most (${number(most.units)}) on ${most.date}, in UTC.`;
  return h("li", { "data-id": policy }, h("h4", null, policyLink(policy)),
    h("svg", { class: "usage", viewBox: `0 0 ${days * 10} 40`, preserveAspectRatio: "none", role: "img", "aria-label": words }, list.map((d, i) => {
      const height = most.units > 0 ? (Math.max(0, d.units) / most.units) * 38 : 0;
      return h("g", null, h("title", null, `${d.date}: ${number(d.units)}`), h("rect", { class: "c0", x: i * 10, width: 8, y: 39 - height, height: height + 1 }));
    })),
    h("p", { class: "quiet small" }, words));
}

export const key = {
  title: ({ key }) => ["Key ", keyText(key)],
  params: (query) => ({ hours: hoursOf(query) }),
  async load({ key, stored, hours }) {
    const [k, why, slots] = await Promise.all([call("key", { key, stored }), call("why", { key, stored }), call("denials", { key, stored, hours })]);
    return { ...k, why: why.policies, slots };
  },
  render(k, { key, setup, width }) {
    return [
      k.stored !== key && h("p", { class: "quiet" }, "Stored as ", keyText(k.stored)),
      k.stored === key && setup.hashed && h("p", { class: "quiet" }, "This is a hash: a block by prefix, pattern or network is not shown. Open the key by its name."),
      panel("Limits", true, k.why.length ? h("ul", { class: "list" }, k.why.map((w) => row(w, k.at, setup))) : empty("The key has no row: it was not used lately, under any policy."),
        setup.write && h("p", null, h("button", { class: "small", "data-do": "block", "data-id": "block other" }, "Block under another policy …"))),
      panel("Open reservations", true, k.reservations.length ? table("Open reservations", [
        ["ID", (r) => keyText(r.id)],
        ["Policy", (r) => policyLink(r.policy)],
        ["Units", (r) => number(r.units), "number"],
        ["Expires", (r) => when(r.expires_at, k.at)],
      ], k.reservations, (r) => r.id) : empty("None.")),
      panel("Overrides", true, k.overrides.length ? overridesTable(k.overrides, k.at, setup.write, ["Policy", (o) => [policyLink(o.policy), o.match && [" ", keyText(o.key, true)]]]) : empty("None: the key has the limits of its policies.")),
      k.usage.length > 0 && panel("Usage over time", true, h("ul", { class: "list" }, k.usage.map((u) => usage(u, k.at)))),
      panel("Denials over time", true, chart(k.slots, width, counted)),
    ];
  },
};

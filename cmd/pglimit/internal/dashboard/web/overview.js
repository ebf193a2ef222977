// The overview: the doctor's summary, denials over time, and the keys that are limited most.

import { call } from "./api.js";
import { chart, hoursOf } from "./chart.js";
import { h } from "./dom.js";
import { check, counted, empty, keysTable, panel, tally, worstFirst } from "./parts.js";

const rest = 30_000; // ms between two examinations by the doctor

let report, examined;
// Returns the doctor's report: unless it has to be new, one from a while ago.
async function doctor(fresh) {
  if (!fresh && report && performance.now() - examined < rest) return report;
  report = await call("doctor");
  examined = performance.now();
  return report;
}

// The doctor may fail where the rest works: that is one line.
async function summary() {
  try {
    return (await doctor()).checks;
  } catch (failure) {
    if (failure.gone) throw failure;
    return [{ name: "doctor", verdict: "warn", message: `The database could not be examined: ${failure.message}` }];
  }
}

export const overview = {
  title: () => "Overview",
  params: (query) => ({ hours: hoursOf(query) }),
  async load({ hours }) {
    const [denials, denied, checks] = await Promise.all([call("denials", { hours }), call("keys", { order: "denials", limit: 10 }), summary()]);
    const keys = denied.rows.length ? denied : await call("keys", { order: "share", limit: 10 });
    return { denials, keys, checks };
  },
  render({ denials, keys, checks }, { width }) {
    const bad = worstFirst(checks).filter((c) => !["ok", "unchecked"].includes(c.verdict));
    return h("div", { class: "panels" },
      panel("Denials over time", true, chart(denials, width, counted)),
      panel("Doctor", true, h("p", null, tally(checks), ". ", h("a", { href: "#/doctor" }, "All checks")), bad.length > 0 && h("ul", { class: "list" }, bad.map(check))),
      panel("Most limited keys", true, keys.rows.length ? keysTable("Most limited keys", keys) : empty("No key has a row yet."), h("p", null, h("a", { href: "#/keys" }, "All keys"))),
    );
  },
};

export const doctorPage = {
  title: () => "Doctor",
  every: rest,
  load: () => doctor(true),
  render({ checks, at }) {
    return panel("Checks", true, h("p", null, tally(checks), ", made at ", new Date(at).toLocaleTimeString("en-GB"), "."), h("ul", { class: "list" }, worstFirst(checks).map(check)));
  },
};

// The buttons: block, unblock, reset, those of policies and overrides, and copy.

import { call } from "./api.js";
import { ask, field } from "./dialog.js";
import { h } from "./dom.js";
import { deleteOverride, deletePolicy, editOverride, editPolicy } from "./edit.js";
import { algorithm, algorithms, keyText } from "./format.js";

const durations = [["1m", "1 minute"], ["10m", "10 minutes"], ["1h", "1 hour"], ["24h", "1 day"], ["168h", "7 days"], ["720h", "30 days"], ["", "Another time"]];

/** Handles a click on a button with data-do. ref is the key and data what the page shows; say announces what was done. Returns whether something was changed. */
export async function act(button, ref, data, say) {
  const { do: verb, policy, algorithm: a, text } = button.dataset;
  if (button.getAttribute("aria-disabled")) return false;
  const name = ref.key && keyText(ref.key, true);
  const where = policy && `under ${policy}, ${algorithm(a)}`;
  const done = async (saved, text) => {
    await saved;
    say(text);
    return true;
  };
  const override = () => data.overrides.find((o) => o.match === (button.dataset.match ?? "") && o.policy === policy && o.key === (button.dataset.key ?? data.stored));
  switch (verb) {
    case "edit policy":
      return done(editPolicy(data.p), "Saved.");
    case "delete policy":
      return done(deletePolicy(data.p.name), "Deleted.");
    case "edit override": // the key of an override is as it is stored
      return done(override() ? editOverride(override(), true) : editOverride({ policy, key: ref.key }, ref.stored), "Saved.");
    case "delete override":
      return done(deleteOverride(override(), true), "Deleted.");
    case "copy":
      try {
        await navigator.clipboard.writeText(text);
        say("Copied.");
      } catch {
        getSelection().selectAllChildren(button.previousElementSibling);
        say("The browser does not let the page copy: the text is selected.");
      }
      return false;
    case "unblock": {
      const { found } = await call("unblock", { ...ref, policy, algorithm: a }, true);
      say(found ? `Unblocked ${where}.` : `There was no block ${where}.`);
      return true;
    }
    case "reset":
      return ask({
        title: ["Reset ", name, "?"],
        text: `This deletes what the key has used ${where}, and its block. It cannot be undone.`,
        yes: "Reset",
        send: async () => {
          const { found } = await call("reset", { ...ref, policy, algorithm: a }, true);
          say(found ? `Reset ${where}.` : `There was no row ${where}.`);
        },
      });
    case "block": {
      const custom = field("Such as 90s, 36h or 1h30m", h("input", { name: "other", autocomplete: "off" }));
      custom.hidden = true;
      const select = h("select", { name: "for" }, durations.map(([value, name]) => h("option", { value, selected: value === "10m" }, name)));
      select.addEventListener("change", () => (custom.hidden = select.value !== ""));
      return ask({
        title: ["Block ", name, "?"],
        text: where ? `All its requests ${where} are denied until then.` : "All its requests under the policy are denied until then.",
        yes: "Block",
        fields: [
          !where && field("Policy", h("input", { name: "policy", maxlength: 64, required: true, autocomplete: "off", autocapitalize: "off", spellcheck: "false" })),
          !where && field("Algorithm", h("select", { name: "algorithm" }, algorithms.map((value) => h("option", { value, selected: value === "token_bucket" }, algorithm(value))))),
          field("For", select), custom,
        ].filter(Boolean),
        send: async (form) => {
          const on = { policy: policy ?? form.get("policy"), algorithm: a ?? form.get("algorithm") };
          await call("block", { ...ref, ...on, for: form.get("for") || form.get("other").trim() }, true);
          say(`Blocked under ${on.policy}, ${algorithm(on.algorithm)}.`);
        },
      });
    }
  }
  return false;
}

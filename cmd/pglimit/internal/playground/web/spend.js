// The cards of slots and of a balance, which show who holds what.

import { post } from "./api.js";
import { short } from "./plot.js";

const seconds = (ms) => `${(Math.max(0, ms) / 1000).toFixed(1)} s`;

// What both cards share: element, whose buttons post their data to the server.
class Pool {
  constructor(id, page) {
    this.page = page;
    this.element = document.getElementById(id);
    for (const b of this.element.querySelectorAll("[data-post]")) b.onclick = () => this.post(b.dataset.post, JSON.parse(b.dataset.body ?? "{}"));
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  show(name, value) {
    const at = this.find(`[data-is=${name}]`);
    if (at.textContent !== String(value)) at.textContent = value;
  }

  /** Posts body with the key, and shows a failure on the card. */
  async post(path, body) {
    try {
      const answer = await post(path, { key: this.page.key(), ...body });
      this.find(".problem").textContent = "";
      return answer;
    } catch (e) {
      this.find(".problem").textContent = e.message;
    }
  }
}

/** Three places, the jobs that hold them, and those that wait. */
export class Slots extends Pool {
  #jobs = [];
  #ended = 0;
  #places = [...document.querySelectorAll("#slots .place")].map((row) => ({ row, number: 0 }));

  constructor(page) {
    super("slots", page);
    for (const place of this.#places) {
      for (const die of [false, true]) {
        place.row.querySelector(die ? ".die" : ".finish").onclick = () => this.post("/api/jobs", { number: place.number, die });
      }
    }
  }

  /** Shows the key's jobs. A job stays at its place. */
  jobs(jobs) {
    this.#ended += this.#jobs.filter((old) => old.ends_at && !jobs.some((j) => j.number === old.number)).length;
    this.#jobs = jobs;
    const holders = jobs.filter((j) => j.ends_at);
    for (const p of this.#places) if (!holders.some((j) => j.number === p.number)) p.number = 0;
    for (const j of holders) {
      const at = this.#places.find((p) => p.number === j.number) ?? this.#places.find((p) => !p.number);
      if (at) at.number = j.number;
    }
    for (const { row, number } of this.#places) {
      const j = holders.find((j) => j.number === number);
      row.dataset.state = j ? (j.dead ? "dead" : "held") : "free";
      row.querySelector(".who").textContent = j ? `Job ${number}${j.dead ? " died" : ""}` : "free";
      for (const b of row.querySelectorAll("button")) {
        b.disabled = row.dataset.state !== "held";
        b.setAttribute("aria-label", `${b.textContent} job ${number}`);
      }
    }
    this.show("waiting", jobs.filter((j) => !j.ends_at).map((j) => j.number).join(", ") || "–");
    this.show("ended", this.#ended);
  }

  level({ level }) {
    this.show("held", `${level} of ${this.#places.length}`);
  }

  draw(now) {
    for (const { row, number } of this.#places) {
      const left = (this.#jobs.find((j) => j.number === number)?.ends_at ?? now) - now;
      row.querySelector(".ttl").style.width = `${Math.min(100, Math.max(0, left / 100))}%`;
      row.querySelector(".left").textContent = number ? seconds(left) : "";
    }
  }

  reset() {
    this.#ended = 0;
    this.show("ended", 0);
    this.show("held", `0 of ${this.#places.length}`);
  }
}

/** The lots of a balance in the order in which they are spent. */
export class Balance extends Pool {
  #lots = [];
  #denied = 0;

  constructor(page) {
    super("balance", page);
    for (const b of this.element.querySelectorAll(".spend")) {
      const requests = [{ policy: { algorithm: "balance", overdraft: 20 }, cost: +b.value }];
      b.onclick = async () => {
        const a = await this.post("/api/send", { times: 1, requests });
        if (a) page.say(a.allowed ? `Balance: ${b.value} units are spent.` : "Balance: denied, it has too few units.");
      };
    }
  }

  decision(d) {
    if (d.outcome === "denied") this.show("denied", ++this.#denied);
  }

  level({ usage }) {
    const left = usage.lots.reduce((sum, lot) => sum + lot.units, 0);
    for (const [name, units] of Object.entries({ left, owed: usage.debt, spent: usage.spent, expired: usage.expired })) this.show(name, short(units));
    this.#lots = usage.lots;
    const bar = usage.lots.map((lot) => {
      const part = document.createElement("i");
      part.style.flexGrow = lot.units;
      return part;
    });
    this.find(".stack").replaceChildren(...bar);
    const rows = this.find(".lots");
    while (rows.children.length > usage.lots.length) rows.lastElementChild.remove();
    while (rows.children.length < usage.lots.length) rows.append(document.createElement("li"));
  }

  draw(now) {
    for (const [n, lot] of this.#lots.entries()) {
      const text = `${lot.source || "lot"} ${lot.number}: ${short(lot.units)}, priority ${lot.priority ?? 0}, ${lot.expires ? `ends in ${seconds(Date.parse(lot.expires) - now)}` : "no end"}`;
      const row = this.find(".lots").children[n];
      if (row.textContent !== text) row.textContent = text;
    }
  }

  reset() {
    this.#denied = 0;
    this.show("denied", 0);
    this.level({ usage: { lots: [], debt: 0, spent: 0, expired: 0 } });
  }
}

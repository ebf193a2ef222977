// The replay of an access log under the cards' policies.

import { post } from "./api.js";
import { title, words } from "./card.js";

const most = 3;
const first = ["token_bucket", "fixed_window", "sliding_window_log"];
const element = (id) => document.getElementById(id);

/** Sets up the section for the cards and logs of up to maxBytes. */
export function setUpReplay(cards, maxBytes) {
  const boxes = cards.map((card) => {
    const box = Object.assign(document.createElement("input"), {
      type: "checkbox", name: "candidate", value: card.algorithm, checked: first.includes(card.algorithm),
    });
    const label = document.createElement("label");
    label.append(box, title(card.algorithm));
    element("candidates").append(label);
    return box;
  });
  const limit = () => {
    const full = boxes.filter((b) => b.checked).length >= most;
    for (const b of boxes) b.disabled = full && !b.checked;
  };
  for (const b of boxes) b.onchange = limit;
  limit();

  const replayed = (file) => replay(file, cards.filter((_, i) => boxes[i].checked), maxBytes);
  const drop = element("drop");
  element("file").onchange = (e) => e.target.files.length && replayed(e.target.files[0]);
  for (const name of ["dragenter", "dragover"]) {
    drop.addEventListener(name, (e) => {
      e.preventDefault();
      drop.classList.add("over");
    });
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (e) => {
    e.preventDefault();
    drop.classList.remove("over");
    const { files } = e.dataTransfer;
    if (files.length === 1) replayed(files[0]);
    else say(`${files.length ? "These are several files" : "That is not a file"}: drop one access log.`, "failed");
  });
  // A file that misses the zone must not replace the page.
  for (const name of ["dragover", "drop"]) addEventListener(name, (e) => e.preventDefault());
}

let running = new AbortController();

async function replay(file, cards, maxBytes) {
  running.abort();
  const { signal } = (running = new AbortController());
  const frame = element("report");
  element("result").hidden = true;
  say(`Reading ${file.name} …`, "working");
  try {
    if (!cards.length) throw new Error("Choose a policy first: check one to three cards.");
    if (file.size > maxBytes) throw new Error(`larger than ${maxBytes >> 20} MiB: use a part of it, or pglimit replay.`);
    await file.slice(0, 1).arrayBuffer().catch(() => {
      throw new Error("cannot be read: choose a file that you may read, not a folder.");
    });
    const requests = cards.map((c) => c.request());
    const query = new URLSearchParams({
      name: file.name,
      policies: JSON.stringify(requests.map((a) => a.policy)),
      costs: JSON.stringify(requests.map((a) => a.cost)),
    });
    const answer = await post("/api/replay?" + query, file, signal);
    if (signal.aborted) return;
    frame.onload = () => {
      const report = frame.contentDocument; // null if loading failed
      if (report) frame.style.height = report.documentElement.scrollHeight + 24 + "px";
    };
    frame.src = answer.url;
    element("report-open").href = answer.url;
    element("report-save").href = answer.url + "?download";
    element("result").hidden = false;
    const bad = answer.bad_lines ? `, ${count(answer.bad_lines, "line")} that could not be read` : "";
    say(`${file.name}: ${count(answer.requests, "request")}${bad}.`, "done");
  } catch (e) {
    if (!signal.aborted) say(`${file.name}: ${words(e)}`, "failed");
  } finally {
    if (!signal.aborted) element("file").value = ""; // the same file can be chosen again
  }
}

const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

function say(text, state) {
  element("replay-status").textContent = text;
  element("replay-status").dataset.state = state;
}

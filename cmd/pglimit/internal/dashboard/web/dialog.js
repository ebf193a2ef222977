// The dialog that asks before a change.

import { h } from "./dom.js";

export const field = (label, control) => h("label", { class: "field" }, label, control);

/** Asks for a confirmation, with fields. With review, the first submission shows what it returns, as [answer, elements], and the second sends; another input begins again. send gets the fields' values and the answer; while it fails the dialog stays. Resolves when it has sent, and never if the user cancels. */
export function ask({ title, text, fields = [], yes, review, send }) {
  const problem = h("p", { id: "ask-problem", class: "problem", role: "alert" });
  const no = h("button", { type: "button", id: "ask-no" }, "Cancel");
  const button = h("button", { id: "ask-yes", class: "main" }, yes);
  const shown = h("div", { id: "ask-review", role: "status" });
  const form = h("form", null, h("h2", { id: "ask-title" }, title), h("p", null, text), h("div", { class: "fields" }, fields), shown, problem, h("div", { class: "buttons" }, no, button));
  // A new element for each question: late events and answers of the last one do not reach it.
  const dialog = h("dialog", { id: "ask", class: review ? "large" : null, "aria-labelledby": "ask-title" }, form);
  document.getElementById("ask")?.remove();
  document.body.append(dialog);
  let reviewed;
  const begin = () => {
    reviewed = undefined;
    shown.replaceChildren();
    if (review) button.textContent = "Show the difference";
  };
  begin();
  dialog.showModal();
  no.addEventListener("click", () => dialog.close());
  let inputs = 0;
  form.addEventListener("input", () => {
    inputs++;
    begin();
  });
  return new Promise((resolve, reject) => form.addEventListener("submit", async (e) => {
    e.preventDefault();
    if (button.getAttribute("aria-disabled")) return;
    button.setAttribute("aria-disabled", "true"); // it keeps the focus
    problem.textContent = "";
    const before = inputs;
    try {
      if (review && !reviewed) {
        const [answer, elements] = await review(new FormData(form));
        if (inputs !== before) return; // it is of other values
        shown.replaceChildren(...elements);
        if (answer) {
          reviewed = answer;
          button.textContent = yes;
        }
        return;
      }
      await send(new FormData(form), reviewed);
      dialog.close();
      resolve(true);
    } catch (failure) {
      begin();
      problem.textContent = failure.message;
      if (!dialog.open) reject(failure);
    } finally {
      button.removeAttribute("aria-disabled");
    }
  }));
}

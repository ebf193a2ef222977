// Requests to the server.

/** An error message for the user. away says that neither the data nor the request is wrong: trying again may help. */
export class Failure extends Error {
  constructor(message, { away = false, gone = false, field } = {}) {
    super(message);
    Object.assign(this, { away, gone, field });
  }
}

const longest = 15_000; // ms that a request may take

let token = "";
try {
  token = sessionStorage.getItem("pglimit-token") ?? "";
} catch {} // the browser stores nothing

/** Takes the token out of the address, if it is there, and keeps it for this tab: it allows changes. Returns whether it was there. */
export function takeToken() {
  const given = location.hash.match(/^#token=(\w+)$/)?.[1];
  if (!given) return false;
  token = given;
  history.replaceState(null, "", "#/");
  try {
    sessionStorage.setItem("pglimit-token", token);
  } catch {}
  return true;
}

export const hasToken = () => token !== "";

/** Sends a request and returns the answer's JSON. With a body it is a POST. Throws a Failure. */
export async function call(path, body, change = false) {
  let response, answer;
  try {
    response = await fetch("/api/" + path, {
      method: body ? "POST" : "GET",
      headers: { ...(body && { "Content-Type": "application/json" }), ...((change || path === "setup") && token && { "Pglimit-Token": token }) },
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(longest),
    });
    answer = await response.json();
  } catch (e) {
    if (e.name === "TimeoutError") throw new Failure("The dashboard does not answer in time.", { away: true, gone: true });
    throw new Failure("The dashboard does not answer. Start it again with: pglimit dashboard", { away: true, gone: true });
  }
  if (!response.ok) throw new Failure(answer.error || `The dashboard answered ${response.status}.`, { away: response.status >= 500, field: answer.field });
  return answer;
}

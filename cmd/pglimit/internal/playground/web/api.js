// Requests from the page to its server.

/** An error message for the user, with field and algorithm if the server names them. */
export class Failure extends Error {
  constructor(answer) {
    super(answer.error);
    this.field = answer.field;
    this.algorithm = answer.algorithm;
  }
}

const gone = "The playground does not answer. Start it again with: pglimit playground";

/** Posts body and returns the answer's JSON. Throws a Failure. signal, if given, aborts the request. */
export async function post(path, body, signal) {
  const raw = body instanceof Blob;
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": raw ? "application/octet-stream" : "application/json" },
      body: raw ? body : JSON.stringify(body),
      signal,
    });
  } catch {
    throw new Failure({ error: gone });
  }
  return read(response);
}

export async function get(path) {
  try {
    return await read(await fetch(path));
  } catch (e) {
    throw e instanceof Failure ? e : new Failure({ error: gone });
  }
}

/** Returns why a URL of events is refused; "" if it is not, or the server does not answer. */
export async function refusal(path) {
  const enough = new AbortController();
  try {
    const response = await fetch(path, { signal: enough.signal });
    return response.ok ? "" : (await response.json()).error;
  } catch {
    return "";
  } finally {
    enough.abort();
  }
}

async function read(response) {
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Failure({ ...answer, error: answer.error || `The playground answered ${response.status}.` });
  return answer;
}

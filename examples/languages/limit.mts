// Usage: limit.mts KEY... Exit code 0: all allowed; 1: one denied. PGLIMIT_URL names the server.
// Needs Node 22.18, which runs TypeScript. For Node 20: npx esbuild limit.mts --outfile=limit.mjs

import { randomUUID } from "node:crypto";

type Result = { allowed: boolean; remaining: number; retry_after_s: number | null };

// fetch keeps connections open. Without an answer the request may have been counted: it is sent once
// more, and the same key counts it once.
async function allow(policy: string, key: string, cost = 1): Promise<Result> {
	const once = randomUUID();
	for (let last = false; ; last = true) {
		try {
			const answer = await fetch(process.env.PGLIMIT_URL + "/v1/allow", {
				method: "POST",
				headers: {
					"Content-Type": "application/json",
					Authorization: "Bearer " + (process.env.PGLIMIT_TOKEN ?? ""),
					"Idempotency-Key": once,
				},
				body: JSON.stringify({ policy, key, cost }),
				signal: AbortSignal.timeout(2000),
			});
			const text = await answer.text();
			if (answer.ok) return JSON.parse(text);
			if (answer.status < 500) last = true;
			throw new Error(text);
		} catch (error) {
			if (last) throw error;
		}
	}
}

for (const key of process.argv.slice(2)) {
	const result = await allow("login", key);
	console.log(result.allowed ? "allowed" : `denied, again in ${result.retry_after_s} s`);
	if (!result.allowed) process.exitCode = 1;
}

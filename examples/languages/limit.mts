// Usage: limit.mts KEY. Exit code 0: allowed; 1: denied. PGLIMIT_URL names the server.
// Needs Node 22.18, which runs TypeScript. For Node 20: npx esbuild limit.mts --outfile=limit.mjs

type Result = { allowed: boolean; remaining: number; retry_after_s: number | null };

async function allow(policy: string, key: string, cost = 1): Promise<Result> {
	const answer = await fetch(process.env.PGLIMIT_URL + "/v1/allow", {
		method: "POST",
		headers: { "Content-Type": "application/json", Authorization: "Bearer " + (process.env.PGLIMIT_TOKEN ?? "") },
		body: JSON.stringify({ policy, key, cost }),
		signal: AbortSignal.timeout(2000),
	});
	if (!answer.ok) throw new Error(await answer.text());
	return await answer.json();
}

const result = await allow("login", process.argv[2]);
console.log(result.allowed ? "allowed" : `denied, again in ${result.retry_after_s} s`);
process.exitCode = result.allowed ? 0 : 1;

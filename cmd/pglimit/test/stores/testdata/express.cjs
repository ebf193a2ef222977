// Drives stores/express.mjs: "middleware" in a real Express, "store" as express-rate-limit 8 calls it.
const { createInterface } = require('node:readline');
const express = require('express');
const pg = require('pg');

(async () => {
	const { pglimit, PglimitStore } = await import(process.env.STORES + '/express.mjs');
	const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, keepAlive: true, connectionTimeoutMillis: 60_000, query_timeout: 60_000 });
	pool.on('error', () => {}); // an idle connection that ended
	const ways = {
		middleware() {
			const app = express();
			app.use(pglimit({ pool, policy: 'login', key: (req) => req.query.key, onError: process.env.ON_ERROR || undefined,
				idempotencyKey: (req) => req.get('X-Task') }));
			app.get('/', (req, res) => res.send('done'));
			return new Promise((resolve) => {
				const server = app.listen(0, '127.0.0.1', () => resolve({
					async hit(key, id) {
						const answer = await fetch(`http://127.0.0.1:${server.address().port}/?key=${encodeURIComponent(key)}`, { headers: id ? { 'X-Task': id } : {} });
						return [answer.status, Number(answer.headers.get('Retry-After')), answer.headers.get('RateLimit')];
					},
					reset: (key) => pool.query('SELECT pglimit.reset($1, $2)', ['login', key]),
				}));
			});
		},
		async store() {
			const store = new PglimitStore({ pool, prefix: 'express' });
			store.init({ windowMs: 3_600_000, limit: 5 });
			return {
				async hit(key, id, alone) {
					try {
						const { totalHits, resetTime } = await store.increment(key);
						if (!Number.isInteger(totalHits) || totalHits < 1) throw new Error('totalHits is ' + totalHits);
						if (totalHits > 5) { // what skipFailedRequests does after a denial
							await store.decrement(key);
							if (alone && (await store.get(key)).totalHits !== totalHits - 1) throw new Error('no decrement');
						}
						return [totalHits > 5 ? 429 : 200, (resetTime - Date.now()) / 1000];
					} catch (error) {
						if (error.constructor.name !== 'Unavailable') throw error;
						return [503];
					}
				},
				reset: (key) => (key === '' ? store.resetAll() : store.resetKey(key)),
			};
		},
	};
	const way = await ways[process.argv[2]]();
	for await (const line of createInterface({ input: process.stdin })) {
		const { op, key, id, n } = JSON.parse(line);
		const answers = op === 'reset' ? (await way.reset(key), []) : await Promise.all(Array.from({ length: n }, () => way.hit(key, id, n === 1)));
		console.log(JSON.stringify(answers.map(([status, retry_after, field]) => ({ status, retry_after: retry_after || 0, field: field || '' }))));
	}
	process.exit(0);
})();

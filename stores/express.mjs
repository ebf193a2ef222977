// pglimit in Express: a middleware that asks for a decision, and a store for express-rate-limit.
// Both are one statement a request over node-pg and stores.sql. README.md beside it says more.
//
// The pool keeps its connections alive and bounds each wait:
//
//   new pg.Pool({ keepAlive: true, connectionTimeoutMillis: 2000, query_timeout: 2000 })

import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';

// Unavailable is thrown when PostgreSQL did not answer, also not when it was asked again.
export class Unavailable extends Error {}

// ask runs one statement and returns its row. args(id) has an idempotency key: with it a statement
// whose answer was lost is sent again, and counts once. Without, only what failed for sure is.
async function ask(pool, retries, sql, args, key) {
	for (let tries = 0; ; tries++) {
		try {
			return (await pool.query(sql, args)).rows[0];
		} catch (error) {
			const answered = error.severity !== undefined; // by an SQLSTATE: it counted nothing
			if (answered && !/^(08|25006|40|53|55P03|57)/.test(error.code)) throw error; // a mistake stays one
			const again = answered || error.code === 'ECONNREFUSED' || key;
			if (!again || tries >= retries) throw new Unavailable('pglimit: PostgreSQL does not answer: ' + error.message, { cause: error });
			await pause(10 + 40 * Math.random()); // meanwhile the pool notices which other connections are lost
		}
	}
}

// bounded refuses a pool whose calls may wait for ever.
function bounded(pool) {
	for (const name of ['connectionTimeoutMillis', 'query_timeout']) {
		if (!(pool.options[name] > 0)) throw new TypeError(`pglimit: the pool has no ${name}: set it, such as to 2000`);
	}
	return pool;
}

// fit returns a key that PostgreSQL can store: 1 to 1,024 bytes without NUL. Others become a hash.
function fit(key) {
	key = String(key);
	const bytes = Buffer.byteLength(key);
	return bytes > 0 && bytes <= 1024 && !key.includes('\0') ? key : 'sha256:' + createHash('sha256').update(key).digest('hex');
}

// pglimit returns an Express middleware that requests cost units of a policy of pglimit_policy.
// It sets RateLimit, and answers a denial with 429 and Retry-After. Options:
//
//   pool            of node-pg
//   policy          its name
//   key             (req) => whose limit it is. Default: req.ip; set Express's "trust proxy"
//   cost            (req) => units. Default: 1
//   idempotencyKey  (req) => names the request for a day. Default: a random name, for a minute.
//                   Never what a client sends: a repeated one is not counted
//   retries         times that a lost statement is sent again. Default: 1; with 0 no random name is stored
//   onError         when PostgreSQL is away: 'fail_closed', the default, answers 503, 'fail_open' passes
export function pglimit({ pool, policy, key = (req) => req.ip, cost = () => 1, idempotencyKey = () => null, retries = 1, onError = 'fail_closed' }) {
	bounded(pool);
	if (onError !== 'fail_closed' && onError !== 'fail_open') throw new TypeError(`pglimit: onError is '${onError}': must be 'fail_closed' or 'fail_open'`);
	return async (req, res, next) => {
		try {
			const given = idempotencyKey(req);
			const id = given ?? (retries > 0 ? randomUUID() : null);
			const answer = await ask(pool, retries, 'SELECT * FROM pglimit_store.allow($1, $2, $3, $4, $5)', [policy, fit(key(req)), cost(req), id, given ? 86_400 : 60], id);
			const wait = answer.allowed ? answer.reset_after_s : answer.retry_after_s; // null is never
			res.set('RateLimit', `"${policy}";r=${Math.max(0, Math.floor(answer.remaining))}` + (wait === null ? '' : `;t=${Math.ceil(wait)}`));
			if (answer.allowed) return next();
			if (wait !== null) res.set('Retry-After', String(Math.ceil(wait)));
			res.status(429).type('application/problem+json').send({ title: 'Too many requests', status: 429 });
		} catch (error) {
			if (!(error instanceof Unavailable)) return next(error);
			if (onError === 'fail_open') return next();
			res.set('Retry-After', '1').status(503).type('application/problem+json').send({ title: 'The rate limit cannot be checked', status: 503 });
		}
	};
}

// PglimitStore is a store for express-rate-limit. It counts every hit in a fixed window, also those
// above the limit, as that middleware's own store does: totalHits is exact, and a decrement after
// a denial (skipFailedRequests) gives back what was counted. The middleware compares with its
// limit. While PostgreSQL is away the methods throw: passOnStoreError decides, false by default.
export class PglimitStore {
	localKeys = false;

	// prefix names the limit in pglimit, as a policy's name: one for each rateLimit().
	constructor({ pool, prefix = 'express', retries = 1 }) {
		if (!/^[a-z0-9][a-z0-9_.-]{0,63}$/.test(prefix)) throw new TypeError(`pglimit: prefix is '${prefix}': must match ^[a-z0-9][a-z0-9_.-]{0,63}$`);
		Object.assign(this, { pool: bounded(pool), prefix, retries, windowMs: 60_000 });
	}

	init(options) {
		this.windowMs = options.windowMs;
	}

	async get(key) {
		const { level, reset_after_s } = await ask(this.pool, this.retries, 'SELECT * FROM pglimit_store.hits($1, $2)', [this.prefix, fit(key)], 'reads');
		return level > 0 ? { totalHits: level, resetTime: this.#at(reset_after_s) } : undefined;
	}

	async increment(key) {
		const id = this.retries > 0 ? randomUUID() : null;
		const { level, reset_after_s } = await ask(this.pool, this.retries, 'SELECT * FROM pglimit_store.hit($1, $2, 1, $3, $4, 60)', [this.prefix, fit(key), this.windowMs / 1000, id], id);
		return { totalHits: level, resetTime: this.#at(reset_after_s) };
	}

	async decrement(key) {
		await ask(this.pool, this.retries, 'SELECT pglimit_store.unhit($1, $2, 1, $3)', [this.prefix, fit(key), this.windowMs / 1000]);
	}

	async resetKey(key) {
		await ask(this.pool, this.retries, 'SELECT pglimit_store.forget($1, $2)', [this.prefix, fit(key)], 'resets');
	}

	async resetAll() {
		await ask(this.pool, this.retries, 'SELECT pglimit_store.forget_all($1)', [this.prefix], 'resets');
	}

	#at(seconds) {
		return new Date(Date.now() + seconds * 1000);
	}
}

// Package limiter limits rates and spending in PostgreSQL. Each decision is one atomic
// statement, alone or in the caller's transaction.
//
//	pool, err := pgxpool.New(ctx, url)
//	err = migrations.Up(ctx, pool) // once, or `pglimit migrate up`
//	l, err := limiter.New(pool, nil)
//
//	messages := limiter.PerMinute("messages", 5)
//	r, err := l.Allow(ctx, messages, userID)
//	if err == nil && !r.Allowed {
//		// 429, Retry-After: r.RetryAfter
//	}
//
// # Choosing a method
//
//   - Allow, AllowN and Do request units, all or nothing.
//   - AllowAll makes several requests, of any policies and keys: all are granted or none.
//   - AllowUpTo grants as much as fits.
//   - Check returns what Do would return and consumes nothing.
//   - Charge records units that were already used.
//   - Grant adds prepaid units to a Balance, which these methods spend.
//   - Refund gives units back, Undo gives back what an earlier result granted.
//   - Reserve sets units aside, ReserveUpTo as much as fits. Settle ends the reservation with the units really used,
//     Cancel with none.
//   - Attempt begins a login or another attempt that may fail. Succeeded and Failed report it, and only
//     failures count.
//   - Usage returns what was spent, is reserved and remains.
//   - Wait, DoWait and WaitAll wait for a turn in a queue.
//   - Block, Unblock and Reset are for operators.
//   - InTx and InSQLTx return these methods for a transaction.
//   - RunTx and RunSQLTx run a transaction, and run it again after a conflict.
//
// NewSQL makes a Limiter over database/sql, with any driver.
//
//	                  leaky_  leaky_bucket_  token_  gcra  fixed_  sliding_window_  sliding_window_
//	                  bucket  queue          bucket        window  counter          log
//	Do, Allow(N)      yes     yes            yes     yes   yes     yes              yes
//	AllowAll, WaitAll yes     yes            yes     yes   yes     yes              yes
//	AllowUpTo         yes     yes            yes     yes   yes     yes              yes
//	Check, Usage      yes     yes            yes     yes   yes     yes              yes
//	Charge            yes     yes            yes     yes   yes     yes              yes
//	Refund, Undo      yes     no             yes     yes   yes     yes              yes
//	Reserve(UpTo)     yes     no             yes     yes   yes     yes              yes
//	Wait, DoWait      no      yes            no      no    no      no               no
//	Reset, (Un)Block  yes     yes            yes     yes   yes     yes              yes
//
// "no" returns ErrUnsupported. Units given back to a queue would let two requests leave
// at the same time, and only a queue has turns to wait for. Attempt, Succeeded and Failed need a
// policy of the algorithm Attempts. Of the other methods only Check, Usage, Reset, Block and
// Unblock work with such a policy. A Balance has all but Wait and DoWait.
//
// # Shadow policies
//
// Policy.Shadow tries a limit on real traffic: the policy decides and counts, and lets
// everything pass. Result.Shadowed reports what it would have denied. Config.Observe sees
// each call, and a DenialLog counts denials by key, shadowed ones too.
//
// # Guarantees
//
// A key never admits more than its policy allows, by the database's clock and the
// algorithm's definition, for any number of processes. A slack that forgives rounding is
// 1e-6 units or a billionth of the burst, whichever is less. A decision on a fraction may
// round by 1e-15 of the burst, too. Windows count whole units exactly up to 2^53, so keep
// money in minor units. Two cases differ:
//
//   - FailOpen allows requests without counting them while the database is away, and
//     FailLocal up to a share in each process.
//   - A statement that ends in ErrUnavailable may or may not have been counted.
//
// Acknowledged decisions survive a crash of the database server. With a Relaxed policy
// the last ones may be lost, see Durability.
//
// The time is the database's, read once per decision. A key's clock never moves back: if
// the server's clock is set back, keys wait until it has caught up.
//
// # Concurrent callers
//
// Concurrent callers share statements. If no statement is in flight, a caller sends its
// own immediately. Requests made meanwhile queue and are sent together in the next
// statement, with the requests for one key in one row. Results are the same as if each
// request had been sent alone, in order of arrival. So share one Limiter, and see
// Config.BatchRows.
//
// That is so for Do, Allow and AllowN without an IdempotencyKey, and for AllowUpTo of whole
// units if the policy has no BlockFor. All other requests take turns by key, and few are in
// flight at once, so that one key does not keep the others out. If more wait, most of them
// share transactions. Requests for a row that another transaction has locked wait apart from
// the others.
//
// A caller whose context ends returns immediately. If its statement was not sent, it
// consumes nothing. After that it may have consumed its units. In a transaction each
// request is its own statement.
//
// This process remembers a denial for at most Config.DenyCacheTTL. It then answers equal
// or larger requests for that key in well under a microsecond, and denies an AllowAll with
// such a request.
//
// After several failures in a row a circuit breaker opens, and requests fail immediately
// for a moment. See Config.BreakAfter.
//
// # Testing
//
// NewMemory decides as PostgreSQL does, without a database. In a bubble of testing/synctest
// its clock is the fake one, and Wait sleeps in fake time; see the test TestWithFakeTime.
// Code that declares an interface with the methods that it calls works with a Limiter, a Tx
// or a fake. Code that takes limits in a transaction needs a PostgreSQL: package
// pglimittest, a separate module, starts one.
package limiter

// Package limiter limits rates and spends in PostgreSQL: every decision is one
// atomic statement, alone or inside a transaction of yours.
//
//	pool, err := pgxpool.New(ctx, url)
//	err = migrations.Up(ctx, pool) // once, or `pglimit migrate up`
//	l, err := limiter.New(pool, nil)
//
//	login := limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Burst: 10}
//	r, err := l.Allow(ctx, login, userID)
//	if err == nil && !r.Allowed {
//		// 429, Retry-After: r.RetryAfter
//	}
//
// # Which verb
//
// Allow, AllowN and Do ask for units, all or nothing. AllowAll asks for several
// things at once, of any policies and keys: all or none. AllowUpTo takes what fits.
// Check tells what they would answer and takes nothing. Fill records what
// happened anyway. Refund gives back. Reserve sets units aside until Settle tells
// what was really spent, or Cancel that nothing was. Statement tells what was spent,
// is held and is left. Wait, DoWait and WaitAll queue for their turn. Block, Unblock
// and Reset are for operators. InTx and InSQLTx give the same inside a
// transaction. NewSQL makes a Limiter over database/sql, with any driver.
//
//	                  leaky_  leaky_bucket_  token_  gcra  fixed_  sliding_window_  sliding_window_
//	                  bucket  queue          bucket        window  counter          log
//	Do, Allow(N)      yes     yes            yes     yes   yes     yes              yes
//	AllowAll, WaitAll yes     yes            yes     yes   yes     yes              yes
//	AllowUpTo         yes     yes            yes     yes   yes     yes              yes
//	Check             yes     yes            yes     yes   yes     yes              yes
//	Fill              yes     yes            yes     yes   yes     yes              yes
//	Refund            yes     no             yes     yes   yes     yes              yes
//	Reserve           yes     no             yes     yes   yes     yes              yes
//	Wait, DoWait      no      yes            no      no    no      no               no
//	Reset, (Un)Block  yes     yes            yes     yes   yes     yes              yes
//
// "no" gives ErrUnsupported: a place in a queue that is given back would let
// two others leave at once, and only a queue knows whose turn is when.
//
// # What is exact
//
// A key never admits more than its policy says, by the database's clock and
// the algorithm's own definition, however many processes ask at once; the
// slack that forgives rounding is 1e-6 units or a billionth of the burst,
// whichever is less, and never one whole unit. Whole units are exact up to
// 2^53, so keep money in minor units. FailOpen allows without counting while
// the database cannot be asked. A statement that ends in ErrUnavailable may have
// been counted or not.
//
// What was acknowledged stays, unless the policy is Relaxed: then a crash of the
// database server may forget its last moment, see Durability.
//
// Time is the database's, read once per decision; it never moves back for a
// key. If the server's clock is set back, keys wait until it has caught up.
//
// # Many callers
//
// A caller whom nobody is ahead of has a statement of its own, at once. Those who
// ask while it is in flight share the next one: many keys in one statement, equal
// asks for one key in one row, each with the answer that it would have got alone,
// in the order of arrival. So share one Limiter, and see Config.BatchRows. A
// caller whose context ends while it waits for its statement consumes nothing;
// once that is in flight it may have. In transactions each ask is a statement.
//
// A denial is remembered in this process for a moment, at most a second unless
// Config.DenyCacheTTL says otherwise, and answers equal or larger asks for that
// key in well under a microsecond.
//
// A database that does not answer several times in a row is left alone for a
// moment, see Config.BreakAfter: asks fail at once then.
package limiter

package limiter

import (
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// FailMode selects the result of a request while the database is unavailable.
type FailMode uint8

const (
	// FailClosed returns the error. It is the zero value.
	FailClosed FailMode = iota
	// FailOpen allows the request while the database is away, with Result.Source
	// SourceDegraded. Invalid input, an overload, a locked row, a statement that is late
	// while others are answered, a pool whose connections others use, a closed limiter,
	// Reserve, transactions and ErrMisconfigured still return the error (see
	// Config.MisconfiguredFailsOpen).
	FailOpen
	// FailLocal decides where FailOpen would allow: in this process's memory, by
	// Policy.LocalShare of the policy. N processes together admit at most N times that.
	//
	//   - A key begins with that share of the units that this process last saw in the
	//     database, and with its block.
	//   - What was granted is charged when the database answers again, as far as it still
	//     counts. If the answer to a charge is lost, its units may count twice.
	//   - Result.Source is SourceDegraded. Limit, Burst, Remaining and RetryAfter are those of
	//     the share.
	//   - What the share can never grant, and new keys above Config.MaxKeys, get the error.
	//   - A Wait that is cancelled gives nothing back.
	//   - An IdempotencyKey is remembered by this process, and forgotten afterwards.
	FailLocal
)

// Durability selects whether a crash of the database server may lose a decision. It does
// not change what is decided.
type Durability uint8

const (
	// Durable waits until the database has written the decision to disk. It is the zero
	// value. A statement turns synchronous_commit on if it is off, and keeps every
	// stronger setting. Only a failover can lose an acknowledged decision; synchronous
	// replication prevents that.
	Durable Durability = iota
	// Relaxed does not wait for the disk and is several times faster: a statement turns
	// synchronous_commit off. After a crash of the server, what was counted in the last 3
	// times wal_writer_delay (0.6 s by default) may be lost, and can then be granted
	// again.
	Relaxed
)

// Policy sets how much a key may use. It is a plain value: compare it, copy it, keep it
// in a variable, or read it from JSON or YAML, where durations are strings such as
// "1m30s".
//
// Name and Algorithm identify a policy. With the same two, another Limit, Period or Burst
// continues with what a key has used, so keys under one Name can have different plans.
// The level is carried over as it is: if it is above the new Burst, nothing more is
// granted until the request fits. A bucket leaks at the new rate from its last decision
// on. Another Algorithm starts from zero; but TokenBucket and GCRA continue each other.
type Policy struct {
	// Name separates the keys of this policy from those of other policies. It matches
	// ^[a-z0-9][a-z0-9_.-]{0,63}$. It has no default.
	Name string `json:"name"`
	// Algorithm is one of the constants of that type. It has no default.
	Algorithm Algorithm `json:"algorithm"`
	// Limit is the number of units that pass per Period in the long run, from 1e-9 to
	// 2^53. It has no default. For Attempts it is the number of the first failure that makes
	// the key wait, a whole number: at 3, the third failure and each further one do. For Concurrency it is the
	// number of units that may be held at once, a whole number.
	Limit float64 `json:"limit"`
	// Period is the time over which Limit units pass: whole microseconds, up to a hundred
	// years. It has no default. It must be 0 with a Calendar. For Attempts it is the time after
	// which failures are forgotten. It begins at the end of the last wait, or at the last
	// failure if that made none. For Concurrency it is how long a slot is held that is not
	// renewed, from one second.
	Period time.Duration `json:"period,omitempty"`
	// Burst is the capacity: the number of units that an unused key grants at once, from
	// 1e-9 to 2^53. Default: Limit. For the window algorithms it must be 0 or equal to
	// Limit. For Attempts it is the number of attempts of a key that may be under way at once:
	// a whole number up to 100, by default 1.
	Burst float64 `json:"burst,omitempty"`
	// Tick makes a LeakyBucket leak in whole steps, one every Tick: whole microseconds.
	// Default: 0, which leaks continuously. For LeakyBucket only.
	Tick time.Duration `json:"tick,omitempty"`
	// Aligned makes windows start at whole multiples of Period since 1970-01-01 UTC.
	// Default: false; a window starts at a key's first request. For FixedWindow only;
	// windows of a SlidingWindowCounter are always aligned.
	Aligned bool `json:"aligned,omitempty"`
	// Calendar makes windows the hours, days, weeks, months, quarters or years of a calendar,
	// from Anchor on, instead of Period and Aligned. Default: none. For FixedWindow only. The
	// database's clock selects the window; this program's time zone data defines its edges.
	Calendar Calendar `json:"calendar,omitempty"`
	// TimeZone is the zone of Calendar's local dates and hours: a name of the IANA time
	// zone database in its exact spelling, such as "Europe/Vienna". Names of older
	// versions, such as "US/Pacific", are valid; "Local" and other names of files, such
	// as "posix/Europe/Vienna", are not. Default: UTC. For use with Calendar only. If the
	// system may lack that database, as in small container images, import _
	// "time/tzdata".
	TimeZone string `json:"time_zone,omitempty"`
	// Anchor is a moment at which a period of Calendar begins, in TimeZone: a date such as
	// "2024-01-31", or a date and time such as "2024-01-31T09:30", from the year 1000 on. All
	// other periods, before and after it, follow from it. For a customer it is the start of the
	// subscription. Default: 2024-01-01, a Monday. For use with Calendar only.
	//
	//   - An Hour begins at its minute, a Day at its time, a Week at its weekday and time, a
	//     Month at its day and time, a Quarter and a Year also in its month.
	//   - A month that lacks the day has the begin on its last one: after January 31 come
	//     February 28 or 29 and March 31.
	//   - A period whose first reading a local clock leaves out, or shows twice, begins at the
	//     first moment that shows it or a later one.
	//   - Keys under one Name can have different anchors: set it for each request, or by an
	//     override of the key. A window that has begun keeps its end. The next one ends with the
	//     period of the new anchor that it begins in, so it may be short.
	Anchor string `json:"anchor,omitempty"`
	// BlockFor, if positive, blocks a key for this long after a denial that granted
	// nothing. Requests denied while the key is blocked do not extend the block. An Undo of
	// what led to the denial lifts it. Whole microseconds, up to a hundred years. Default: 0.
	// For Attempts it is the wait after the failure number Limit, and must be positive.
	BlockFor time.Duration `json:"block_for,omitempty"`
	// BlockGrowth is the factor by which each further failure makes the wait longer, from 1 to
	// 1,000: with 2 the waits are BlockFor, then 2, 4 and 8 times BlockFor. A wait grows at most
	// 1,000 times. Default: 0, which is 2. For Attempts only.
	BlockGrowth float64 `json:"block_growth,omitempty"`
	// BlockMax is the longest wait: whole microseconds, at least BlockFor. Default: 0, which is
	// Period. For Attempts only.
	BlockMax time.Duration `json:"block_max,omitempty"`
	// Durability selects whether a crash of the server may lose the last decisions.
	// Default: Durable. In the caller's transaction that transaction's settings apply
	// instead.
	Durability Durability `json:"durability,omitempty"`
	// OnError selects the result while the database is away. Default: FailClosed.
	OnError FailMode `json:"on_error,omitempty"`
	// LocalShare is the part of Limit and Burst that each process may use by itself while
	// the database is away: for N processes, 1/N. It is from 1e-6 to 1. Default: 0, which
	// is 0.1. For FailLocal only.
	LocalShare float64 `json:"local_share,omitempty"`
	// Lease is the share of the burst that processes may hold in memory, to decide requests for
	// a key that they all use without a round trip: from 0 to 0.5. 0.05 is a good value.
	// Default: 0, none. See docs/leases.md.
	//
	//   - A process takes a block of units from the key's row and grants them for at most the
	//     life of a lease: the time in which Lease of the burst passes at the rate of Limit, or
	//     10 s if that is less. In less than 10 ms, or a Tick, nothing is lent.
	//   - No more passes than without it. The price is the burst of buckets: all decisions
	//     under the policy are made against Burst less what passes in a life.
	//   - A fixed or counted window keeps its limit. Its leases end with it.
	//   - Do, Allow and AllowN at a whole cost, without an IdempotencyKey and without a Floor,
	//     use leases. All other methods, and those in transactions, use the row.
	//   - Block, Reset and a changed policy apply to this process at once, in a transaction
	//     from the call on, and to others within a life.
	//   - A LeakyBucketQueue and a SlidingWindowLog have no leases. NewMemory needs none.
	Lease float64 `json:"lease,omitempty"`
	// Overdraft is how far below zero requests may bring a Balance, in units: from 1e-9 to
	// 2^53. Default: 0, not at all. The next Grant pays it first. For Balance only.
	Overdraft float64 `json:"overdraft,omitempty"`
	// Ledger makes the database keep an entry of whatever changes a Balance: of each grant, each
	// request that was granted, each refund and each lot that has expired, with the lots that gave
	// or got units and the Note of the request. Default: false. For Balance only. Policies.Ledger
	// of package policies reads them. See docs/spending.md#the-ledger.
	//
	//   - The statement of the decision enters it, so that both are committed or neither is. A
	//     denial, and a request that is repeated under its IdempotencyKey, enter nothing.
	//   - A lot that has expired is entered by the key's next request, whatever its answer.
	//   - Requests share no statement with others. The requests of an AllowAll for one key are one
	//     entry, with the first Note.
	//   - Settle, Cancel and the end of a reservation are entered if the policy had a Ledger when it
	//     was made, with its Note.
	//   - If something changed the balance without an entry, while Ledger was false, the next entry
	//     is preceded by one of the kind open, which has all that there is.
	//   - Reset enters that all is gone. The janitor deletes an entry after ten years.
	//   - Requests with ShardingRouter return ErrUnsupported. NewMemory decides alike and keeps no
	//     entries.
	Ledger bool `json:"ledger,omitempty"`
	// MaxKeys bounds the number of keys that have a row in the database: from 1 to 1e9.
	// Default: 0, no bound. While it is reached, keys that have a row are decided as before. Keys
	// without a row share one row, under RestLimit, or are denied with ReasonKeys. See
	// docs/http.md.
	//
	//   - The number of rows never exceeds it. Each process takes permits for up to a hundredth
	//     of MaxKeys, at most 100, in advance. Until the janitor has counted again, unused permits
	//     are not available to other processes.
	//   - Only the janitor makes room, by deleting empty rows.
	//   - All programs must use the same MaxKeys under one Name and Algorithm. The SQL functions
	//     by name respect it. Those with numbers in the call do not, and insert rows.
	//   - In a transaction a new key locks the count of the policy's keys until the end. New
	//     keys of other transactions wait for that.
	//   - With ShardingRouter new keys return ErrUnsupported.
	MaxKeys int64 `json:"max_keys,omitempty"`
	// RestLimit is the Limit of the row that keys without a row share while MaxKeys is reached:
	// from 1e-9 to 2^53. Burst changes in proportion to Limit, and BlockFor does not apply.
	// Default: 0, no shared row: those keys are denied. For MaxKeys only.
	//
	//   - The shared row answers Do, Allow, AllowN, AllowUpTo, Charge and Check. Reserve,
	//     ReserveUpTo, AllowAll, the Waits and requests with an IdempotencyKey are denied.
	//   - Undo, Refund and Reset of such a key give nothing back.
	RestLimit float64 `json:"rest_limit,omitempty"`
	// Marks are parts of the burst, or of a window's limit, of which the database keeps that a
	// key has reached them: percentages such as "80%,100%", in rising order, from 0.0001% to
	// 100%, with at most four decimals, at most 8. Default: "", none. See docs/marks.md, and
	// Policies.Events of package policies, which delivers these events.
	//
	//   - The first decision of a window that leaves or finds the level at a mark or above
	//     records it, in the statement of the decision, so that both are committed or neither
	//     is. A denial records marks as of the units in use.
	//   - 100% is reached when less than a unit is free, or less than the cost if that is smaller.
	//   - In a window a key records each mark once. Windows are those of the algorithm; for a
	//     bucket, and a SlidingWindowLog, the periods since 1970-01-01 UTC.
	//   - All verbs that consume record marks: an AllowAll those of each key once all are locked,
	//     and an AllowAny those of each pool that is asked. So do the SQL functions by a policy's
	//     name.
	//   - Settle, Refund, Undo, Check and requests above the burst record none: the key's next
	//     decision does. Decisions of FailLocal do so when they are charged. The row of RestLimit
	//     has no marks.
	//   - Requests share no statement with others. Attempts, Balance, Concurrency, a
	//     LeakyBucketQueue and a policy with a Lease have no marks, and requests with
	//     ShardingRouter return ErrUnsupported. NewMemory decides alike and records none:
	//     Policies without a database have no events.
	Marks string `json:"marks,omitempty"`
	// UsageBy is Hour or Day: then the database keeps a sum of the units that each key spends in
	// each hour or day of UTC. Default: "", no sums. Policies.UsageSince of package policies
	// reads them. See docs/spending.md#usage-over-time.
	//
	//   - The statement of a decision adds to the sum, so that both are committed or neither is.
	//     A denial adds nothing, of a Shadow policy neither.
	//   - What counts is Result.Granted, in the hour or day of Result.At. Refund and Undo
	//     subtract theirs in the hour or day in which units go back, so a sum may be negative.
	//   - A reservation counts where it was made: Settle makes it the units really spent, and 0
	//     stay if it is cancelled or expires.
	//   - Reset keeps the sums.
	//   - What has no decision in the database counts nothing: a key whose override is unlimited,
	//     an answer of FailOpen, NewMemory. FailLocal counts when its decisions are charged.
	//     Keys of the row of RestLimit have one sum, under the key "".
	//   - Algorithms without Marks, and policies with a Lease, have no sums. Requests with
	//     ShardingRouter return ErrUnsupported. SQL functions that consume, or refund, by the
	//     policy's name fail.
	UsageBy Calendar `json:"usage_by,omitempty"`
	// UsageFor is how long a sum is kept after the end of its hour or day: whole seconds, from one
	// of them to 3,650 days. Then the janitor deletes it. A change applies to new sums. Default:
	// 0, which is 31 days for Hour and 400 days for Day.
	UsageFor time.Duration `json:"usage_for,omitempty"`
	// Shadow makes the policy decide, count, block and report as if it denied, but never
	// deny or delay: to try a limit on real traffic. Default: false.
	//
	//   - A request that would be denied is Allowed, with Result.Shadowed. Nothing was counted
	//     for it, as for a denial.
	//   - A Wait is counted in the queue and does not sleep.
	//   - Outside a transaction the database never makes a request fail: an outage, an
	//     overload, a locked row or ErrMisconfigured gives an allowed Result with
	//     SourceDegraded and Shadowed. OnError does not matter.
	//   - In an AllowAll it never denies the others.
	//   - Invalid requests, a closed Limiter and errors in the caller's transaction are
	//     errors as for any policy.
	Shadow bool `json:"shadow,omitempty"`
}

// PerSecond returns a TokenBucket of limit units per second, and limit at once. For another
// algorithm, period or burst write a Policy, or change the fields of this one. Methods that
// take the Policy return ErrInvalid if limit is not from 1e-9 to 2^53 or name is not valid.
func PerSecond(name string, limit float64) Policy { return per(time.Second, name, limit) }

// PerMinute is PerSecond for limit units per minute.
func PerMinute(name string, limit float64) Policy { return per(time.Minute, name, limit) }

// PerHour is PerSecond for limit units per hour.
func PerHour(name string, limit float64) Policy { return per(time.Hour, name, limit) }

func per(period time.Duration, name string, limit float64) Policy {
	return Policy{Name: name, Algorithm: TokenBucket, Limit: limit, Period: period}
}

// burst returns Burst or its default.
func (p Policy) burst() float64 {
	switch {
	case p.Algorithm == Balance:
		return p.Overdraft
	case p.Burst == 0 && p.Algorithm == Attempts:
		return 1
	case p.Burst == 0:
		return p.Limit
	}
	return p.Burst
}

// The lives of leases in microseconds: a shorter one is not worth a statement, and a longer one
// would keep Block, Reset and a changed policy from a process for too long.
const shortestLease, longestLease = 10e3, 10e6

// LeaseLife returns the life of the policy's leases: 0 if it has none, or else from 10ms to 10s.
// The SQL functions compute it alike.
func (p *Policy) LeaseLife() time.Duration {
	us := float64(longestLease)
	switch {
	case p.Lease == 0:
		return 0
	case p.Algorithm.bucket(): // the time in which that share of the burst passes
		us = min(us, float64(float64(p.Lease*p.burst())/p.Limit)*float64(p.Period.Microseconds()))
	case p.Calendar == "":
		us = min(us, p.Lease*float64(p.Period.Microseconds()))
	}
	if us < shortestLease {
		return 0
	}
	tick := float64(max(1, p.Tick.Microseconds()))
	return time.Duration(math.Trunc(us/tick)*tick) * time.Microsecond
}

// room returns the capacity of a key: the burst, less the units that leases may hold while
// they pass at the rate of a bucket.
func (p *Policy) room() float64 {
	if !p.Algorithm.bucket() || p.Lease == 0 {
		return p.burst()
	}
	return p.burst() - float64(p.Limit*float64(p.LeaseLife().Microseconds()))/float64(p.Period.Microseconds())
}

// Algorithm names how a [Policy] decides. Its value is the name used in SQL, JSON, YAML,
// flags and docs.
type Algorithm string

const (
	// LeakyBucket is the leaky bucket as a meter (policing): a bucket of Burst units that
	// leaks Limit units per Period. A request that would overflow it is denied. With
	// Policy.Tick it leaks in whole steps.
	LeakyBucket = Algorithm(algorithm.LeakyBucket)
	// LeakyBucketQueue is the leaky bucket as a queue (shaping): up to Burst units wait
	// in it and leave at the even pace of Limit per Period. Result.Delay is the time
	// until a request's turn, and Wait sleeps for it.
	LeakyBucketQueue = Algorithm(algorithm.LeakyBucketQueue)
	// TokenBucket holds up to Burst tokens and gains Limit tokens per Period.
	TokenBucket = Algorithm(algorithm.TokenBucket)
	// GCRA is the generic cell rate algorithm of ITU-T I.371, known from networks and
	// Redis. It decides as TokenBucket does, on the same rows: what is stored says
	// token_bucket.
	GCRA = Algorithm(algorithm.GCRA)
	// FixedWindow counts up to Limit units in a window of one Period. A window starts at
	// the first request or, with Policy.Aligned, on the clock. Twice the limit can pass
	// around the edge of two windows.
	FixedWindow = Algorithm(algorithm.FixedWindow)
	// SlidingWindowCounter counts in windows of one Period on the clock. It weighs the
	// previous window by the part of it that the last Period still covers. It comes close
	// to SlidingWindowLog and stores two numbers.
	SlidingWindowCounter = Algorithm(algorithm.SlidingWindowCounter)
	// SlidingWindowLog stores each decision of the last Period and admits at most Limit
	// units in any window of one Period, exactly. It takes 16 bytes for each decision in a
	// Period. A decision costs the same at any Limit.
	SlidingWindowLog = Algorithm(algorithm.SlidingWindowLog)
	// Attempts limits attempts that succeed or fail: logins, one-time codes, password resets.
	// It meters no units, so [Algorithms] does not list it. Its policies work only with Attempt,
	// Succeeded, Failed, Check, Usage, Reset, Block and Unblock. See [Limiter.Attempt].
	Attempts = Algorithm(algorithm.Attempts)
	// Concurrency limits how much is held at once: at most Limit units of a key, in slots that
	// end after Period unless they are renewed or released. As Attempts it is not in
	// [Algorithms]. Only Acquire, DoAcquire, AcquireWait, Renew, Release, Keep, DoWith, Check,
	// Usage, Reset, Block and Unblock serve its policies. See [Limiter.Acquire].
	Concurrency = Algorithm(algorithm.Concurrency)
	// Balance spends prepaid units, such as credits or minutes, that Grant adds in lots with
	// an end and a priority of their own. It has no Limit and no Period, so [Algorithms] does
	// not list it. Policy.Overdraft lets a key spend more than it has. See [Limiter.Grant].
	//
	//   - Result.Remaining is the units left and Overdraft, less the debt. Level is the debt.
	//     Limit is 0, and Burst is Overdraft.
	//   - RetryAfter of a denial is Never, unless the key is blocked: no time is known at
	//     which units are granted.
	//   - Charge may bring a key below its Overdraft. Refund pays the debt, then adds to the
	//     lot that is spent last, or makes one that does not expire.
	//   - Reset forgets the balance: units that are left are lost.
	//   - Wait returns ErrUnsupported, and a Floor is an ErrInvalid.
	//   - A denial is never answered from memory: a Grant by any process counts at once.
	Balance = Algorithm(algorithm.Balance)
)

// Algorithms returns every algorithm that meters units which pass, in a fixed order: all but
// Attempts, Concurrency and Balance.
func Algorithms() []Algorithm {
	all := make([]Algorithm, len(algorithm.Names))
	for i, n := range algorithm.Names {
		all[i] = Algorithm(n)
	}
	return all
}

// table is the algorithm in whose table the rows are.
func (a Algorithm) table() algorithm.Name { return algorithm.Name(a).Table() }

func (a Algorithm) known() bool { return a.unmetered() || algorithm.Name(a).Index() >= 0 }

// unmetered reports whether the algorithm meters no units that pass.
func (a Algorithm) unmetered() bool { return a == Attempts || a == Concurrency }

// bucket reports whether the algorithm leaks. The others count in windows.
func (a Algorithm) bucket() bool {
	return algorithm.Name(a).Family() == algorithm.Buckets && !a.unmetered()
}

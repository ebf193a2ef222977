package limiter

// Request is for Cost units of Key under Policy.
type Request struct {
	Policy Policy
	// Key identifies the user, tenant or resource to limit: 1 to 1,024 bytes of UTF-8
	// without NUL. JoinKey joins several parts.
	Key string
	// Cost is the number of units requested: from a billionth of the policy's burst, or 1
	// if that is less, to 2^53. It has no default. Only Check accepts 0.
	Cost float64
	// IdempotencyKey, if not empty, makes Do, Reserve and ReserveUpTo count a repeated request once.
	// It is up to 255 bytes of UTF-8 without NUL, such as an order number. An admission
	// is remembered for Config.IdempotencyTTL, separately for each policy and Key, and
	// returned again with Result.Replayed.
	//
	//   - A denial is not remembered.
	//   - The same IdempotencyKey with another Cost is an ErrInvalid.
	//   - AllowAll, WaitAll and DoWait return ErrUnsupported.
	//   - Such a request shares no statement with others.
	//   - The Floor is not compared.
	IdempotencyKey string
	// Floor is the share of the policy's burst that must be free after the request, so that
	// requests with a lower Floor still pass: from 0 to 0.999999, rounded to a millionth.
	// At 0.2 at most 80 % is in use after the request. Default: 0.
	//
	//   - A denial begins no block. While the key is blocked the request is denied.
	//   - RetryAfter is the time until the request fits under its Floor, or Never. The other
	//     numbers of a Result are those of the whole limit.
	//   - Requests of one AllowAll for one policy and key must have one Floor.
	Floor float64
	// Estimate says that Cost is an estimate, for Reserve and ReserveUpTo to correct by what
	// the key's earlier estimates have really spent. Result.Granted is then about Cost times
	// the sum of the units settled by the sum of the Costs, from 0.1 to 2, of the key's last 20
	// settled estimates under the policy. Default: false.
	//
	//   - With fewer than 5 of them, Cost is reserved as it is.
	//   - They are forgotten with their reservations, Config.IdempotencyTTL after these would
	//     have expired. What was cancelled, expired or reserved in part is not counted, nor are
	//     reservations without Estimate.
	//   - The sum of the Costs is that of the estimates, not of what was reserved for them. So
	//     the factor does not feed on itself: it is right as soon as the estimates are alike.
	//   - A whole Cost becomes whole units, rounded up. A Cost up to the burst becomes at most
	//     the burst.
	//   - Settle counts what was spent, also beyond the reservation. Do not hold the work to
	//     Result.Granted if all of the corrected Cost was granted: it would never be corrected
	//     upwards.
	//   - The factor is read by a statement before the one that decides, so it may miss what
	//     is settled in between. What is reserved is decided exactly.
	//   - Other methods return ErrUnsupported.
	Estimate bool
}

// Request returns a Request for cost units of key under p.
func (p Policy) Request(key string, cost float64) Request {
	return Request{Policy: p, Key: key, Cost: cost}
}

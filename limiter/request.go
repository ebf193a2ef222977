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
	// IdempotencyKey, if not empty, makes Do, Reserve, ReserveUpTo, AllowAll, AllowAny and
	// AllowAnySplit count a repeated request once. It is up to 255 bytes of UTF-8 without NUL, such as an order number. An admission
	// is remembered for Config.IdempotencyTTL, separately for each policy and Key, and
	// returned again with Result.Replayed.
	//
	//   - A denial is not remembered.
	//   - The same IdempotencyKey with another Cost is an ErrInvalid.
	//   - All requests of an AllowAll or AllowAny must have the same one, each for another policy
	//     or key. The whole counts once, and the same IdempotencyKey with more requests is an
	//     ErrInvalid. A repeated AllowAny is answered by the pools that gave.
	//   - WaitAll and DoWait return ErrUnsupported.
	//   - Such a request shares no statement with others.
	//   - The Floor is not compared.
	IdempotencyKey string
	// Floor is the share of the policy's burst that must stay free after the request, for
	// requests with a lower Floor: from 0 to 0.999999, rounded to a millionth. With 0.2 the
	// request is granted only if at most 80 % of the burst is in use after it. Default: 0.
	//
	//   - A denial begins no block. While the key is blocked, the request is denied.
	//   - RetryAfter is the time until the request fits with its Floor, or Never. The other
	//     numbers of a Result are those of the whole limit.
	//   - ReserveUpTo reserves what fits with the Floor.
	//   - Requests of one AllowAll for one policy and key must have the same Floor.
	Floor float64
	// Note says what the units are spent for, in the entry of a Policy.Ledger: such as "order 1042".
	// It is up to 255 bytes of UTF-8 without NUL. Default: none. Under a policy without a Ledger it
	// is kept nowhere. It is not compared under an IdempotencyKey.
	Note string
	// Estimate makes Reserve and ReserveUpTo multiply Cost by a factor: the units that the
	// key's last 20 estimates under the policy really spent, divided by the sum of their Costs.
	// If 20 estimates of 100 each spent 30, the factor is 0.3, and 30 units are reserved for the
	// next 100. The factor is at least 0.1 and at most 2. Default: false.
	//
	//   - With fewer than 5 settled estimates the factor is 1.
	//   - An estimate is forgotten with its reservation: Config.IdempotencyTTL after that would
	//     have expired. Reservations that were cancelled, have expired, were granted in part or
	//     had no Estimate do not count.
	//   - The Costs are those of the requests, before the factor. So estimates that are alike
	//     get the right factor at once, and it stays.
	//   - A whole Cost becomes whole units, rounded up. A Cost up to the burst becomes at most
	//     the burst.
	//   - Settle counts all units spent, also beyond the reservation. If all of the corrected
	//     Cost was granted, let the work spend more than Result.Granted: otherwise the factor
	//     never rises.
	//   - The factor is read by a statement before the one that decides, so it may miss what
	//     is settled in between. What is reserved is decided exactly.
	//   - Other methods return ErrUnsupported.
	Estimate bool
}

// Request returns a Request for cost units of key under p.
func (p Policy) Request(key string, cost float64) Request {
	return Request{Policy: p, Key: key, Cost: cost}
}

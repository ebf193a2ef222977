package limiter

import "github.com/pglimit/pglimit/internal/store"

// Sharding is how pglimit's tables are spread over several servers. See docs/scale-out.md.
type Sharding string

// What Config.Sharding may be.
const (
	// ShardingAuto finds tables that Citus distributes, before the first statement and every
	// five seconds: ShardingCitus if it does, or else ShardingNone.
	ShardingAuto = Sharding(store.ShardingAuto)
	// ShardingNone: one server has the tables. What Citus knows is not read.
	ShardingNone = Sharding(store.ShardingNone)
	// ShardingCitus: Citus distributes the tables; see `pglimit migrate distribute`. Until it
	// does, every method returns ErrMisconfigured.
	//
	//   - Callers whose keys are in one shard share statements. An AllowAll is one statement if
	//     all its keys are in one shard, and else a transaction of one for each.
	//   - Nothing else differs: the shard's node decides, by its clock.
	ShardingCitus = Sharding(store.ShardingCitus)
	// ShardingRouter: the pool connects to a router, such as PgDog or SPQR, which sends a
	// statement to the server of its key. Shard all of pglimit's tables by their column key.
	// Each statement then names one policy and one key, and nothing is sent as an array.
	//
	//   - Callers of one key share statements; those of different keys, and of a policy with
	//     BlockFor, do not.
	//   - An AllowAll or WaitAll of several keys is an ErrUnsupported. One key under several
	//     policies is a transaction of a statement each.
	//   - Reserve, Settle, Cancel and Reset are transactions of two to four statements. A denial
	//     looks for expired reservations of its key.
	//   - The owners of the tables are not compared. Run `pglimit doctor` on each server.
	//   - Connect directly to each server to migrate, to run janitors and for `pglimit`. Policies
	//     and a DenialLog need a pool on one server.
	ShardingRouter = Sharding(store.ShardingRouter)
)

// validate returns an error for a Sharding that is none.
func (s Sharding) validate() error {
	switch s {
	case ShardingAuto, ShardingNone, ShardingCitus, ShardingRouter:
		return nil
	}
	return store.Invalid("Config.Sharding", store.Quote(string(s)), `must be "", "none", "citus" or "router"`)
}

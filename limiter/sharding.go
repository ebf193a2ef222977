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
)

// validate returns an error for a Sharding that is none.
func (s Sharding) validate() error {
	switch s {
	case ShardingAuto, ShardingNone, ShardingCitus:
		return nil
	}
	return store.Invalid("Config.Sharding", store.Quote(string(s)), `must be "", "none" or "citus"`)
}

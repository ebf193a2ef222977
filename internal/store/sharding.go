package store

import "fmt"

// Sharding is how the tables are spread over several servers.
type Sharding string

// What Sharding may be.
const (
	ShardingAuto   Sharding = ""       // the catalog shows whether Citus distributes them
	ShardingNone   Sharding = "none"   // one server has them
	ShardingCitus  Sharding = "citus"  // Citus distributes them
	ShardingRouter Sharding = "router" // a router sends each statement to the server of its key
)

// ErrNotDistributed: Sharding is ShardingCitus, and Citus does not distribute the tables.
var ErrNotDistributed = fmt.Errorf("%w: Config.Sharding is %q, but Citus does not distribute pglimit's tables: run `pglimit migrate distribute`", ErrMisconfigured, ShardingCitus)

package decide

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// BenchmarkBinary compares statements in binary with those of sqlc's functions, in the
// client's processor time and allocations for each row. The two take turns.
//
//	go test ./integration/decide -run - -bench Binary -benchtime 2000x
func BenchmarkBinary(b *testing.B) {
	pool := bed.Connect(b, bed.NewDatabase(b), bed.OneConnection)
	bed.Exec(b, pool, "SET synchronous_commit = off")
	conn, err := pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	ways := map[string]db.DBTX{"binary": conn, "sqlc": struct{ *pgxpool.Conn }{conn}}
	for _, a := range []algorithm.Name{algorithm.TokenBucket, algorithm.SlidingWindowLog} {
		for _, n := range []int{1, 100} {
			b.Run(fmt.Sprintf("%s/rows=%d", a, n), func(b *testing.B) {
				var rows []*store.Row
				for i := range n {
					q := &store.Query{Algorithm: a, Policy: "p", Key: fmt.Sprintf("key%05d", i), Cost: 1, Unit: 1, Count: 1, Room: 1e6}
					q.Rules = algorithm.Rules{Burst: 1e6, Capacity: 1e6, Leak: 1e-3, Tick: 1, Period: 1e6, Lifetime: 1e9}
					rows = append(rows, &store.Row{Query: q, Count: 1})
				}
				send := func(tx db.DBTX) {
					var err error
					if n == 1 {
						err = statement.Call{Context: b.Context(), Op: &store.Op{Query: *rows[0].Query}}.Send(tx)
					} else {
						for _, r := range rows {
							r.Outcome = store.Outcome{}
						}
						err = statement.Of(a).TakeMany(b.Context(), tx, rows, nil)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				spent, allocated := map[string]float64{}, map[string]float64{}
				const together = 100 // statements of a turn
				turns := 0
				for b.Loop() {
					turns++
					for name, tx := range ways {
						send(tx)
						before := processorTime()
						allocated[name] = testing.AllocsPerRun(together, func() { send(tx) })
						spent[name] += processorTime() - before
					}
				}
				for name := range ways {
					b.ReportMetric(spent[name]/float64(turns*(together+1)*n), name+"-µs/row")
					b.ReportMetric(allocated[name]/float64(n), name+"-allocs/row")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// processorTime returns this process's processor time in microseconds.
func processorTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Sec)*1e6 + float64(u.Utime.Usec) + float64(u.Stime.Sec)*1e6 + float64(u.Stime.Usec)
}

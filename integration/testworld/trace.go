package testworld

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
)

// Trace is a tracer that records what a pool sends, except what looks for the tables every
// few seconds.
type Trace struct {
	Before func(Sent)                  // called before each send, if not nil
	After  func(sql string, err error) // called after each statement, if not nil

	mu   sync.Mutex
	sent []Sent
}

// Sent is the statements that were sent together.
type Sent []*pgx.QueuedQuery

// On makes a pool's connections call the tracer.
func (r *Trace) On(config *pgxpool.Config) { config.ConnConfig.Tracer = r }

// Take returns what was sent since it was last called.
func (r *Trace) Take() (all []Sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, r.sent = r.sent, nil
	return all
}

func (r *Trace) sends(queries Sent) {
	var sent Sent
	for _, q := range queries {
		args := slices.Clone(q.Arguments)
		for i, a := range args { // the limiter uses its arrays again
			if words, ok := a.([]string); ok {
				args[i] = slices.Clone(words)
			}
		}
		sent = append(sent, &pgx.QueuedQuery{SQL: asWritten(q.SQL, args), Arguments: args})
	}
	r.mu.Lock()
	r.sent = append(r.sent, sent)
	r.mu.Unlock()
	if r.Before != nil {
		r.Before(sent)
	}
}

func (r *Trace) ends(sql string, err error) {
	if r.After != nil {
		r.After(sql, err)
	}
}

// looksForTables reports whether a statement looks for the tables' owners or shards.
func looksForTables(sql string) bool {
	return sql == db.TableOwners || strings.Contains(sql, "pg_catalog.pg_dist_partition")
}

type sentText struct{}

// TraceQueryStart implements pgx.QueryTracer.
func (r *Trace) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !looksForTables(data.SQL) {
		r.sends(Sent{{SQL: data.SQL, Arguments: data.Args}})
	}
	return context.WithValue(ctx, sentText{}, asWritten(data.SQL, data.Args))
}

// TraceQueryEnd implements pgx.QueryTracer.
func (r *Trace) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if sql := ctx.Value(sentText{}).(string); !looksForTables(sql) {
		r.ends(sql, data.Err)
	}
}

// TraceBatchStart implements pgx.BatchTracer.
func (r *Trace) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	r.sends(data.Batch.QueuedQueries)
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (r *Trace) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	r.ends(asWritten(data.SQL, data.Args), data.Err)
}

// TraceBatchEnd implements pgx.BatchTracer.
func (*Trace) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

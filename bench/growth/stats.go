package main

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// stats is the server's statistics of the table.
type stats struct {
	Table   int64   // bytes, without indexes
	Indexes []index // by name
	// Counted by the server since the table was created; Live and Dead are its estimates
	// of the present rows.
	Live, Dead, Updates, HOT, Vacuums int64
}

// index is one of the table's.
type index struct {
	Name  string // without the table's
	Bytes int64
}

// readStats reads them. Busy sessions report their counters about once a second, idle ones
// late, those that end at once.
func readStats(ctx context.Context, conn *pgx.Conn) (s stats, err error) {
	if err := conn.QueryRow(ctx, `SELECT pg_table_size(relid), n_live_tup, n_dead_tup, n_tup_upd, n_tup_hot_upd, autovacuum_count
		FROM pg_stat_user_tables WHERE relid = $1::regclass`, table).
		Scan(&s.Table, &s.Live, &s.Dead, &s.Updates, &s.HOT, &s.Vacuums); err != nil {
		return s, err
	}
	rows, err := conn.Query(ctx, `SELECT c.relname, pg_relation_size(c.oid)
		FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = $1::regclass ORDER BY c.relname`, table)
	if err != nil {
		return s, err
	}
	s.Indexes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (i index, err error) {
		err = row.Scan(&i.Name, &i.Bytes)
		i.Name = strings.TrimPrefix(i.Name, table+"_")
		return i, err
	})
	return s, err
}

// indexBytes returns the size of all indexes.
func (s stats) indexBytes() (sum int64) {
	for _, i := range s.Indexes {
		sum += i.Bytes
	}
	return sum
}

// hotSince returns the share of HOT updates since an earlier reading; -1 if there were no
// updates.
func (s stats) hotSince(earlier stats) float64 {
	if s.Updates == earlier.Updates {
		return -1
	}
	return float64(s.HOT-earlier.HOT) / float64(s.Updates-earlier.Updates)
}

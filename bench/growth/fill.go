package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/limiter"
)

// table is the table that is measured.
const table = "pglimit_token_bucket"

// rowKey is the key of the row with number i, from 0 on.
func rowKey(i int64) string { return fmt.Sprintf("user-%010d", i) }

// sample is the key of the row that the others are copied from.
const sample = "sample"

// fillBatch is the number of rows per statement of fill.
const fillBatch = 500_000

// fill fills the table with rows as the limiter writes them: the limiter writes one, and
// fill copies all its columns except the key and the times. Of n rows the first was used
// one period ago and the last right now, and the janitor looks at them within the next
// hour. A table in which each key is used repeatedly looks like that.
func fill(ctx context.Context, conn *pgx.Conn, l *limiter.Limiter, p limiter.Policy, rows int64) error {
	if _, err := l.Allow(ctx, p, sample); err != nil {
		return err
	}
	columns, err := tableColumns(ctx, conn)
	if err != nil {
		return err
	}
	statement, err := fillStatement(columns)
	if err != nil {
		return err
	}
	hold := p.Period.Microseconds() // with a burst of one period
	for from := int64(0); from < rows; from += fillBatch {
		to := min(from+fillBatch, rows)
		if _, err := conn.Exec(ctx, statement, from, to-1, rows, hold, sample); err != nil {
			return fmt.Errorf("fill %s: %w", table, err)
		}
		progress("%s of %s rows filled", grouped(to), grouped(rows))
	}
	if err := l.Reset(ctx, p, sample); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "VACUUM (ANALYZE) "+table); err != nil {
		return err
	}
	return check(ctx, conn, rows)
}

// check compares the number of rows with the expected one, and checks that the last one
// has the key that the load will request.
func check(ctx context.Context, conn *pgx.Conn, rows int64) error {
	var n int64
	var last string
	if err := conn.QueryRow(ctx, "SELECT count(*), coalesce(max(key), '') FROM "+table).Scan(&n, &last); err != nil {
		return err
	}
	if n != rows || last != rowKey(rows-1) {
		return fmt.Errorf("%s has %d rows up to key %q after it was filled, not %d up to %q", table, n, last, rows, rowKey(rows-1))
	}
	return nil
}

// tableColumns are the columns that can be written, in the table's order.
func tableColumns(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT attname FROM pg_attribute
		WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum`, table)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// fillStatement copies the row with key $5 to the numbers $1 to $2 of $3 in
// all; $4 is the hold in microseconds.
func fillStatement(columns []string) (string, error) {
	own := map[string]string{
		"key":           "'user-' || lpad(i::text, 10, '0')",
		"updated_at_us": "s.updated_at_us - ($4::bigint * (1 - i::float8 / $3::bigint))::bigint",
		"expires_at_us": "s.updated_at_us + (3600000000 * (i::float8 / $3::bigint))::bigint",
	}
	for name := range own {
		if !slices.Contains(columns, name) {
			return "", errors.New(table + " has no column " + name + ": look at how fill makes its rows")
		}
	}
	var values []string
	for _, c := range columns {
		v, ok := own[c]
		if !ok {
			v = "s." + c
		}
		values = append(values, v)
	}
	return fmt.Sprintf("INSERT INTO %s (%s)\nSELECT %s\nFROM %[1]s AS s, generate_series($1::bigint, $2::bigint) AS i\nWHERE s.key = $5",
		table, strings.Join(columns, ", "), strings.Join(values, ", ")), nil
}

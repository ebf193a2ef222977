// Command template writes the SQL files of queries/ from the .tmpl files
// beside it, so that each formula is written once: plain SQL has no way to name
// an expression that a statement needs five times. docs/adr/0001-decide-in-one-upsert.md says why
// it is not done by helper functions or sub-selects.
//
// Run it from the module's root, as make generate does.
package main

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

//go:embed *.tmpl
var sources embed.FS

// algorithm is what one file of queries/ is made from.
type algorithm struct {
	Table    string // name of the table without its prefix, and of the file
	Name     string // how its queries are named
	Template string // which .tmpl defines its statements
	About    string // one sentence for the doc of Take
	Empty    string // the state columns of an empty row, as INSERT names them
	Zero     string // and their values
	Ticks    bool   // the bucket can leak in whole steps
	Queue    bool   // the bucket is a queue

	// The policy's numbers that a row is inserted with, besides its capacity.
	Numbers []number

	Stmt      string // the kind of statement being written: "upsert", "update", "settle" or "read"
	Filling   bool   // the statement is a Fill
	Many      bool   // the statement is a TakeMany
	Reserving bool   // the statement is a Reserve
}

// number is a parameter of Take, and as an array of TakeMany.
type number struct{ Column, Plural, Type string }

var (
	leak    = number{"leak", "leaks", "float8"}
	tick    = number{"tick_us", "ticks_us", "bigint"}
	period  = number{"period_us", "periods_us", "bigint"}
	aligned = number{"aligned", "are_aligned", "bool"}
	// What the asker knows of a calendar: an end of a period, and from when to
	// when it is the next one or the one before.
	from  = number{"from_us", "froms_us", "bigint"}
	turn  = number{"turn_us", "turns_us", "bigint"}
	until = number{"until_us", "untils_us", "bigint"}
)

var algorithms = []algorithm{
	{Table: "leaky_bucket", Name: "LeakyBucket", Template: "bucket", Ticks: true,
		About: "The bucket leaks; an ask that would overflow it is denied (policing).",
		Empty: "level, capacity, leak, tick_us, leaked_at_us", Zero: "0, 0, 1, 1, c.us", Numbers: []number{leak, tick}},
	{Table: "leaky_bucket_queue", Name: "LeakyBucketQueue", Template: "bucket", Queue: true,
		About: "The bucket is a queue (shaping): units leave it at the leak's even pace, and\n-- what is in it already tells how long new ones wait.",
		Empty: "level, capacity, leak, ticket", Zero: "0, 0, 1, c.us", Numbers: []number{leak}},
	{Table: "token_bucket", Name: "TokenBucket", Template: "bucket",
		About: "The level is burst less the tokens left; leak is the rate at which tokens\n-- come back.",
		Empty: "level, capacity, leak", Zero: "0, 0, 1", Numbers: []number{leak}},
	{Table: "gcra", Name: "GCRA", Template: "bucket",
		About: "The generic cell rate algorithm of ITU-T I.371: the level is how far the\n-- theoretical arrival time is ahead of the clock, in units. It is kept as a level\n-- because a microsecond is too coarse a step above a million units a second.",
		Empty: "level, capacity, leak", Zero: "0, 0, 1", Numbers: []number{leak}},
	{Table: "fixed_window", Name: "FixedWindow", Template: "fixed_window",
		Empty: "level, capacity, ends_at_us", Zero: "0, 0, 0", Numbers: []number{period, aligned, from, turn, until}},
	{Table: "sliding_window_counter", Name: "SlidingWindowCounter", Template: "sliding_window_counter",
		Empty: "current, previous, capacity, period_us, ends_at_us", Zero: "0, 0, 0, 1, 0", Numbers: []number{period}},
	{Table: "sliding_window_log", Name: "SlidingWindowLog", Template: "sliding_window_log",
		Empty: "entries, totals, base, total, capacity, period_us, keep_us", Zero: "'{}', '{}', 0, 0, 0, 1, 1", Numbers: []number{period}},
}

// Clock is the one reading of the clock that a statement makes.
func (algorithm) Clock() string {
	return "coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)"
}

// In returns a, writing expressions for that kind of statement.
func (a algorithm) In(stmt string) algorithm { a.Stmt = stmt; return a }

// Fill returns a, writing what Fill adds instead of what Take grants.
func (a algorithm) Fill() algorithm { a.Filling = true; return a }

// OfMany returns a, writing a TakeMany.
func (a algorithm) OfMany() algorithm { a.Many = true; return a }

// Reserve returns a, writing a Take that leaves a hold.
func (a algorithm) Reserve() algorithm { a.Reserving = true; return a }

// E is the clock that never moves back: a reading that waited for the row's
// lock, or a clock that was set back, counts as the time of the last decision.
func (a algorithm) E() string {
	if a.Stmt == "upsert" || a.Stmt == "settle" {
		return "GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)"
	}
	return "GREATEST(t.updated_at_us, c.us)"
}

// Input is a policy's number. A decision goes by the asker's, which the row to be
// inserted carries. What goes back goes by those of the key's row; settling a hold
// goes by the hold's own where no decision has given the row any: only a block made it.
func (a algorithm) Input(column, kind string) string {
	switch a.Stmt {
	case "upsert":
		return "EXCLUDED." + column
	case "settle":
		return fmt.Sprintf("CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.%s ELSE t.%s END", column, column)
	case "update":
		return "t." + column
	}
	return fmt.Sprintf("sqlc.arg(%s)::%s", column, kind)
}

func main() {
	if err := run("queries"); err != nil {
		fmt.Fprintln(os.Stderr, "queries/template:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	for _, a := range algorithms {
		t, err := template.ParseFS(sources, "common.tmpl", a.Template+".tmpl")
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := t.ExecuteTemplate(&out, a.Template+".tmpl", a.In("upsert")); err != nil {
			return err
		}
		// At the end: sqlc would take it for the first query's doc.
		fmt.Fprintf(&out, "\n-- Made from queries/template/%s.tmpl by make generate: edit that.\n", a.Template)
		if err := os.WriteFile(filepath.Join(dir, a.Table+".sql"), out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

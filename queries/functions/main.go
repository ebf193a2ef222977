// Command functions writes the migrations of the SQL functions, for users of
// other languages. The functions run the very text of the statements of
// queries/*.sql, so there is one source of what a decision is. The .tmpl files do
// what limiter/ does around a statement, in the parts of a call:
//
//	arguments.tmpl   checks the arguments and compiles the policy
//	reservation.tmpl reads the ID of a reservation
//	statements.tmpl  has the statements of one algorithm
//	decide.tmpl      runs one of them, and gives expired reservations back
//	answer.tmpl      works out the result
//	policy.tmpl      reads the policy of a name, with the override of a key
//	bound.tmpl       makes sure that the key may have a row
//	calendar.tmpl    finds where a period of a calendar ends
//	public.tmpl      puts the parts together: the functions that programs call
//	attempt.tmpl     has attempts, from their arguments to their results
//	slot.tmpl        has slots, likewise
//	once.tmpl        has what is remembered of several keys, and ends their reservations
//	asking.tmpl      has what schema pglimit_ask adds
//
// What is known of a call goes from part to part as a value of the type _request, whose
// fields are in request.go.
//
// Run it from the module's root after queries/template, as make generate does.
package main

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	calendars "github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/zone"
)

// revision numbers the pairs of migrations: one makes the functions, and undoing
// the other stops new calls of them. A released pair stays as it is: raise this
// with the first change after a release, and the next files are written beside
// it. Each pair makes all functions anew, so users who ran an earlier one get the
// new bodies. What CREATE OR REPLACE cannot do, such as another parameter,
// belongs at the beginning of the new one.
const revision = 1

//go:embed *.tmpl
var sources embed.FS

// algorithm is one table and its statements.
type algorithm struct {
	Table  string // its name in SQL
	Also   string // another name of it, of the same rows
	Name   string // how its queries are named
	Family string // bucket, fixed, counter or log: whose arithmetic tells of its state
	Ticks  bool   // the bucket can leak in whole steps
	Queue  bool   // the bucket is a queue
	Lots   bool   // it is balances

	read *statements
}

// algorithms are in the order of algorithm.Tables.
var algorithms = []algorithm{
	{Table: "leaky_bucket", Name: "LeakyBucket", Family: "bucket", Ticks: true},
	{Table: "leaky_bucket_queue", Name: "LeakyBucketQueue", Family: "bucket", Queue: true},
	{Table: "token_bucket", Also: "gcra", Name: "TokenBucket", Family: "bucket"},
	{Table: "fixed_window", Name: "FixedWindow", Family: "fixed"},
	{Table: "sliding_window_counter", Name: "SlidingWindowCounter", Family: "counter"},
	{Table: "sliding_window_log", Name: "SlidingWindowLog", Family: "log"},
	{Table: "balance", Name: "Balance", Family: "balance", Lots: true},
}

// unqueued are those that have reservations.
var unqueued = slices.DeleteFunc(slices.Clone(algorithms), func(a algorithm) bool { return a.Queue })

// parameter is one of a function's, as it is declared.
type parameter struct{ Name, Type, Default string }

// function is one that programs call.
type function struct {
	Name       string
	Template   string // which one writes its body
	Algorithm  string // the one it is for, as a literal; its parameter algorithm; or its policy's
	Asks       bool   // it is of schema pglimit_ask
	Returns    string
	About      string // one sentence, the function's comment in the database
	Parameters []parameter
	Body       string // what Template wrote

	read *statements
}

var (
	target   = []parameter{{"name", "text", ""}, {"key", "text", ""}}
	limit    = []parameter{{"cost", "float8", "1"}, {"limit_units", "float8", "NULL"}, {"period_s", "float8", "NULL"}}
	burst    = []parameter{{"burst", "float8", "NULL"}}
	tick     = []parameter{{"tick_s", "float8", "0"}}
	fixed    = []parameter{{"aligned", "bool", "false"}, {"ends_at", "timestamptz", "NULL"}}
	block    = []parameter{{"block_for_s", "float8", "0"}, {"shadow", "bool", "false"}}
	ttl      = []parameter{{"ttl_s", "float8", "NULL"}}
	estimate = []parameter{{"estimate", "bool", "false"}}
	forS     = []parameter{{"for_s", "float8", ""}}
	now      = []parameter{{"now", "timestamptz", "NULL"}}
	floor    = []parameter{{"floor", "float8", "0"}}
	ends     = slices.Concat(block, now)
	which    = []parameter{{"algorithm", "text", ""}}

	// kept are the arguments of _arguments that a policy has in the database.
	kept = []string{"limit_units", "period_s", "burst", "tick_s", "aligned", "block_for_s", "shadow", "calendar", "time_zone", "anchor", "unlimited", "count_denials", "blocked_until", "lease", "overdraft"}
)

// KnownForUs is for how long a source is known after a success.
func (function) KnownForUs() int64 { return store.KnownFor }

// MostKnown is how many sources a key knows.
func (function) MostKnown() int { return store.MostKnown }

// Attempt is the text of a query on attempts, as plpgsql runs it.
func (f function) Attempt(query string) (string, error) { return f.read.plpgsql(query) }

// Attempt is function.Attempt.
func (f file) Attempt(query string) (string, error) { return f.read.plpgsql(query) }

// ofPolicy is the Algorithm of functions that read a policy by its name.
const ofPolicy = "policy.algorithm"

// with ends the names of functions that take an algorithm and numbers. Of functions that
// have the same name and other arguments, PostgreSQL would choose by the types: check($1,
// $2, $3) with parameters that a client sends without types would not be check(name, key,
// cost), but check(algorithm, name, key).
const with = "_with"

// functions are all there are, in the order of the file.
func functions(read *statements) (all []function) {
	abouts := map[string]string{
		"leaky_bucket":           "Requests cost units of a leaky bucket, all or nothing; with tick_s it leaks in whole steps.",
		"leaky_bucket_queue":     "Requests a place in a queue; delay_s is how long until its turn.",
		"token_bucket":           "Requests cost tokens of a token bucket, all or nothing.",
		"gcra":                   "Requests cost units of the generic cell rate algorithm, all or nothing.",
		"fixed_window":           "Requests cost units of the running window, all or nothing: of period_s from the first hit, aligned to the clock, or until ends_at.",
		"sliding_window_counter": "Requests cost units of the last period_s, which two counters approximate, all or nothing.",
		"sliding_window_log":     "Requests cost units of the last period_s, exactly, all or nothing.",
	}
	for _, a := range slices.DeleteFunc(slices.Clone(algorithms), func(a algorithm) bool { return a.Lots }) {
		parameters := slices.Concat(target, limit)
		switch {
		case a.Ticks:
			parameters = slices.Concat(parameters, burst, tick)
		case a.Family == "bucket":
			parameters = slices.Concat(parameters, burst)
		case a.Family == "fixed":
			parameters = slices.Concat(parameters, fixed)
		}
		for _, name := range a.names() {
			all = append(all, function{Name: name, Template: "decision", Algorithm: quote(a.Table), Returns: "pglimit.result", About: abouts[name],
				Parameters: slices.Concat(parameters, ends, floor)})
		}
	}
	// Each verb in two forms: of a policy's name, and of an algorithm and numbers.
	verb := func(name, template, returns, about string, byName, byNumbers []parameter) {
		all = append(all,
			function{Name: name, Template: strings.Replace(template, "dispatch", "decision", 1), Algorithm: ofPolicy, Returns: returns, About: about,
				Parameters: slices.Concat(target, byName)},
			function{Name: name + with, Template: template, Algorithm: "algorithm", Returns: returns, About: strings.Replace(about, " under a policy", "", 1),
				Parameters: slices.Concat(which, target, byNumbers)})
	}
	one, numbers := slices.Concat(limit[:1], now), slices.Concat(limit, burst, tick, fixed, ends)
	all = append(all, function{Name: "allow", Template: "decision", Algorithm: ofPolicy, Returns: "pglimit.result",
		About: "Requests cost units under a policy, all or nothing.", Parameters: slices.Concat(target, one, floor)})
	all = append(all, manyKeys()...)
	verb("allow_up_to", "decision", "pglimit.result", "Requests up to cost units under a policy and is granted what fits.", one, numbers)
	verb("check", "dispatch", "pglimit.result", "Reports what a request for cost units under a policy would be answered, and consumes nothing; at cost 0, how the key stands.", one, numbers)
	verb("usage", "usage", "pglimit.usage", "Reports what a key has spent under a policy, what is reserved and what is left.", now, numbers[1:])
	verb("charge", "dispatch", "pglimit.result", "Records cost units under a policy that were spent whatever the limit says.", one, numbers)
	all = append(all, function{Name: "grant", Template: "grant", Algorithm: ofPolicy, Returns: "pglimit.result",
		About:      "Adds prepaid units to a balance. They pay its debt, and the rest can be spent until expires_at.",
		Parameters: slices.Concat(target, []parameter{{"units", "float8", ""}, {"expires_at", "timestamptz", "NULL"}, {"priority", "bigint", "0"}, {"source", "text", "''"}}, now)})
	verb("refund", "dispatch", "pglimit.result", "Gives cost units back, at most what is there.", one, numbers)
	verb("reserve", "reserve", "pglimit.reservation", "Sets cost units aside under a policy for ttl_s, all or nothing, until settle or cancel ends the reservation.",
		slices.Concat(limit[:1], ttl, estimate, now, floor), slices.Concat(limit, burst, tick, fixed, ttl, estimate, ends, floor))
	verb("reserve_up_to", "reserve", "pglimit.reservation", "Sets up to cost units aside under a policy for ttl_s, as many as fit, until settle or cancel ends the reservation.",
		slices.Concat(limit[:1], ttl, estimate, now, floor), slices.Concat(limit, burst, tick, fixed, ttl, estimate, ends, floor))
	all = append(all,
		function{Name: "settle", Template: "settle", Returns: "pglimit.settlement",
			About:      "Ends a reservation with what was really spent; what is left of it comes back.",
			Parameters: []parameter{{"reservation", "text", ""}, {"units", "float8", ""}, {"now", "timestamptz", "NULL"}}},
		function{Name: "cancel", Template: "cancel", Returns: "void",
			About:      "Ends a reservation of which nothing was spent.",
			Parameters: []parameter{{"reservation", "text", ""}, {"now", "timestamptz", "NULL"}}})
	from, waits := []parameter{{"source", "text", "''"}, {"ttl_s", "float8", "30"}}, []parameter{{"block_for_s", "float8", "NULL"}, {"block_growth", "float8", "0"}, {"block_max_s", "float8", "0"}}
	ticket := slices.Concat([]parameter{{"ticket", "text", ""}}, now)
	about := "Begins an attempt that may fail, such as a login, or denies it while the key waits. Report it with succeeded or failed."
	all = append(all,
		function{Name: "attempt", Template: "attempt", Algorithm: ofPolicy, Returns: "pglimit.ticket", About: about, Parameters: slices.Concat(target, from, now)},
		function{Name: "attempt" + with, Template: "attempt", Returns: "pglimit.ticket", About: about, Parameters: slices.Concat(target, limit[1:], burst, waits, from, ends[1:])},
		function{Name: "succeeded", Template: "succeeded", Returns: "void", About: "Reports that an attempt succeeded: clears its failures, and remembers its source.", Parameters: ticket},
		function{Name: "failed", Template: "failed", Returns: "pglimit.result", About: "Reports that an attempt failed: level is the failures that count now, and retry_after_s how long the key waits.", Parameters: ticket})
	slot := []parameter{{"slot", "text", ""}}
	about = "Takes a slot of cost units for ttl_s, of which at most limit_units are held at once, or denies it."
	all = append(all,
		function{Name: "acquire", Template: "acquire", Algorithm: ofPolicy, Returns: "pglimit.slot", About: about, Parameters: slices.Concat(target, limit[:1], ttl, now)},
		function{Name: "acquire" + with, Template: "acquire", Returns: "pglimit.slot", About: about, Parameters: slices.Concat(target, limit, ttl, ends[1:])},
		function{Name: "renew", Template: "renew", Returns: "timestamptz", About: "Holds a slot for ttl_s from now, by default for the period_s of the policy.", Parameters: slices.Concat(slot, ttl, now)},
		function{Name: "release", Template: "release", Returns: "void", About: "Gives a slot back.", Parameters: slices.Concat(slot, now)})
	verb("block", "command", "void", "Denies the key for for_s seconds whatever it has used.", slices.Concat(forS, now), slices.Concat(forS, now))
	verb("unblock", "command", "void", "Lifts the key's block and leaves what it has used.", now, now)
	verb("reset", "command", "void", "Forgets the key: what it has used and its block.", nil, nil)
	for i := range all {
		all[i].read = read
	}
	return all
}

// asking are the functions of schema pglimit_ask, for roles that may do nothing else.
// They have the verbs of functions by name, for policies with askers, and the clock is
// the database's.
func asking(read *statements) (all []function) {
	verb := func(name, template, returns, about string, parameters ...parameter) {
		all = append(all, function{Name: name, Template: template, Algorithm: ofPolicy, Asks: true, Returns: returns, About: about,
			Parameters: parameters, read: read})
	}
	one := slices.Concat(target, limit[:1])
	verb("allow", "decision", "pglimit.result", "Requests cost units under a policy, all or nothing.", slices.Concat(one, floor)...)
	verb("allow_up_to", "decision", "pglimit.result", "Requests up to cost units under a policy and is granted what fits.", one...)
	verb("check", "decision", "pglimit.result", "Reports what a request for cost units would be answered, and consumes nothing; at cost 0, how the key stands.", one...)
	verb("charge", "decision", "pglimit.result", "Records cost units that were spent whatever the limit says, up to the burst.", one...)
	verb("reserve", "reserve", "pglimit.reservation", "Sets cost units aside for ttl_s, all or nothing, until settle or cancel ends the reservation.",
		slices.Concat(one, ttl, floor)...)
	verb("reserve_up_to", "reserve", "pglimit.reservation", "Sets up to cost units aside for ttl_s, as many as fit, until settle or cancel ends the reservation.",
		slices.Concat(one, ttl, floor)...)
	verb("settle", "settle", "pglimit.settlement", "Ends a reservation with what was really spent, at most what was reserved; the rest comes back.",
		parameter{"reservation", "text", ""}, parameter{"units", "float8", ""})
	verb("cancel", "cancel", "void", "Ends a reservation of which nothing was spent.", parameter{"reservation", "text", ""})
	return all
}

// Run is which function runs its statement: that of its algorithm, or the one that looks
// for it.
func (f function) Run() string {
	if f.Algorithm == "algorithm" || f.ByName() {
		return "run"
	}
	return strings.Trim(f.Algorithm, "'")
}

// ByName reports whether the function reads a policy by its name.
func (f function) ByName() bool { return f.Algorithm == ofPolicy }

// Bounded reports whether the function may insert the row of a key whose policy bounds them, or
// change what the policy records of it.
func (f function) Bounded() bool {
	return f.ByName() && slices.Contains([]string{"allow", "allow_up_to", "charge", "refund", "reserve", "reserve_up_to", "block"}, f.Name)
}

// Verb is what the function does, whatever it takes its numbers from.
func (f function) Verb() string { return strings.TrimSuffix(f.Name, with) }

// Has reports whether the function has that parameter.
func (f function) Has(parameter string) bool {
	return slices.ContainsFunc(f.Parameters, named(parameter))
}

func named(name string) func(parameter) bool { return func(p parameter) bool { return p.Name == name } }

// Arguments is what the function passes to _arguments: its verb and algorithm, and of
// the parameters there those that it has itself.
func (f function) Arguments() string {
	verb := f.Verb()
	switch {
	case f.Algorithm != "algorithm" && !f.ByName() || verb == "allow":
		verb = "take"
	case verb == "usage": // at no cost
		verb = "check"
	}
	all := []string{quote(verb), f.Algorithm}
	gap := false // from the first that is left out on
	for _, p := range slices.Concat(target, limit, burst, tick, fixed, block, now, ttl, []parameter{{Name: "calendar"}, {Name: "time_zone"}, {Name: "anchor"}, {Name: "unlimited"}, {Name: "count_denials"}, {Name: "blocked_until"}, {Name: "lease"}, floor[0], {Name: "overdraft"}}) {
		switch {
		case f.Verb() == "usage" && p.Name == "cost":
			all = append(all, "0")
		case f.ByName() && (p.Name == "unlimited" || p.Name == "blocked_until") && (verb == "charge" || verb == "refund"),
			f.Verb() == "usage" && p.Name == "blocked_until":
			gap = true // they record or read what was, also of a key without a limit or with a block
		case f.ByName() && slices.Contains(kept, p.Name):
			all = append(all, p.Name+" => policy."+p.Name)
			gap = true
		case !f.Has(p.Name):
			gap = true
		case gap:
			all = append(all, p.Name+" => "+p.Name)
		default:
			all = append(all, p.Name)
		}
	}
	if f.ByName() {
		return broken(strings.Join(all, ", "), 110, "            ")
	}
	return strings.Join(all, ", ")
}

// Each is the function for one of the requests of allow_all, reserve_all or allow_any.
func (f function) Each() function {
	each := slices.Concat(target, limit[:1], now, floor)
	if f.Name = "allow"; f.Reserves() {
		f.Name, each = "reserve", append(each, ttl...)
	}
	f.Parameters = each
	return f
}

// Order is SQL for the place of an algorithm in the order of locks.
func (f function) Order(which string) string {
	return "pg_catalog.array_position(ARRAY[" + list(algorithms, algorithm.tables) + "], " + which + ")"
}

// Policy is the call that reads the policy.
func (f function) Policy() string {
	switch {
	case f.Asks && f.Has("ttl_s"):
		return "pglimit_ask._find(name, key, ttl_s)"
	case f.Asks:
		return "pglimit_ask._find(name, key)"
	case f.Has("now"):
		return "pglimit._policy_of(name, key, now)"
	}
	return "pglimit._policy_of(name, key)"
}

// Declared is the list of parameters as CREATE FUNCTION has it.
func (f function) Declared() string {
	var all []string
	for _, p := range f.Parameters {
		text := p.Name + " " + p.Type
		if p.Default != "" {
			text += " DEFAULT " + p.Default
		}
		all = append(all, text)
	}
	return broken(strings.Join(all, ", "), 130, "    ")
}

// Rows is the text of a query that returns nothing, or many rows for an expression.
func (f function) Rows(query string) (string, error) { return f.read.rows(query) }

// RememberUs is for how long what was admitted is remembered after it expires: as
// limiter.DefaultIdempotencyTTL.
func (function) RememberUs() int64 { return (24 * time.Hour).Microseconds() }

// Algorithms are all there are.
func (function) Algorithms() []algorithm { return algorithms }

// Statement is the text of a query on the algorithm's table, as plpgsql runs it.
func (a algorithm) Statement(kind string) (string, error) { return a.read.plpgsql(a.Name + kind) }

// names returns the names that requests give the algorithm.
func (a algorithm) names() []string {
	if a.Also == "" {
		return a.tables()
	}
	return append(a.tables(), a.Also)
}

// tables returns the one that stored rows give it.
func (a algorithm) tables() []string { return []string{a.Table} }

// list is a list in SQL of what a function returns of algorithms.
func list(of []algorithm, f func(algorithm) []string) string {
	var all []string
	for _, a := range of {
		for _, name := range f(a) {
			all = append(all, quote(name))
		}
	}
	return strings.Join(all, ", ")
}

// stored is SQL for the algorithm whose table has the rows of the named one.
func stored(name string) string {
	var when string
	for _, a := range algorithms {
		if a.Also != "" {
			when += " WHEN " + quote(a.Also) + " THEN " + quote(a.Table)
		}
	}
	return "CASE " + name + when + " ELSE " + name + " END"
}

// Asking are the names of the functions of schema pglimit_ask.
func (f file) Asking() string {
	var all []string
	for _, f := range f.Asks {
		all = append(all, quote(f.Name))
	}
	return strings.Join(all, ", ")
}

// Verbs are the names of the functions that are not named after an algorithm.
func (f file) Verbs() string {
	var all []string
	for _, f := range f.Functions {
		if f.Algorithm == "algorithm" || f.Algorithm == "" || f.ByName() {
			all = append(all, quote(f.Name))
		}
	}
	return strings.Join(all, ", ")
}

// in is SQL for: that algorithm is one of a family.
func in(family, name string) string {
	return name + " IN (" + list(slices.DeleteFunc(slices.Clone(algorithms), func(a algorithm) bool { return a.Family != family }), algorithm.names) + ")"
}

// quote makes a literal in SQL.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func main() {
	if err := run("queries", filepath.Join("migrations", "functions")); err != nil {
		fmt.Fprintln(os.Stderr, "queries/functions:", err)
		os.Exit(1)
	}
}

// file is what the migration is made from.
type file struct {
	Algorithms []algorithm
	Functions  []function
	Asks       []function // of schema pglimit_ask
	Fields     []group

	read *statements
}

// At is the file for a template whose text stands spaces columns to the right.
func (f file) At(spaces int) placed { return placed{f, strings.Repeat(" ", spaces)} }

type placed struct {
	File   file
	Indent string
}

// Rows is the text of a query that returns nothing, or many rows for an expression.
func (f file) Rows(query string) (string, error) { return f.read.rows(query) }

func run(from, to string) error {
	read, err := readStatements(from)
	if err != nil {
		return err
	}
	for i := range algorithms {
		algorithms[i].read = read
	}
	templates, err := template.New("").Funcs(template.FuncMap{
		"quote": quote, "in": in, "row": row, "fields": fieldNames, "trial": func() string { return broken(strings.Join(trial, ", "), 150, "            ") }, "holding": func() string { return broken(strings.Join(holding, ", "), 150, "            ") }, "bound": func() string { return strings.Join(bound, ", ") },
		"indent": indent, "broken": broken,
		"longest":  func(unit string) int64 { return calendars.Unit(unit).Longest() },
		"title":    func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
		"names":    func() string { return list(algorithms, algorithm.names) },
		"list":     func() string { return strings.ReplaceAll(list(algorithms, algorithm.names), "'", "") },
		"unqueued": func() string { return list(unqueued, algorithm.tables) },
		"stored":   stored,
		"mostDue":  func() int { return store.MaxDue },
		"zones":    func() string { return broken(strings.Join(zone.Names(), ", "), 150, "        ") },
	}).ParseFS(sources, "*.tmpl")
	if err != nil {
		return err
	}
	all := file{Algorithms: algorithms, Functions: functions(read), Asks: asking(read), Fields: fields, read: read}
	for _, some := range [][]function{all.Functions, all.Asks} {
		for i, f := range some {
			var body bytes.Buffer
			if err := templates.ExecuteTemplate(&body, f.Template, f); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			some[i].Body = body.String()
		}
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	number := 2*revision - 1
	suffix := ""
	if revision > 1 { // Export goes by the names, so they differ
		suffix = fmt.Sprintf("_%d", revision)
	}
	for i, part := range []struct{ template, name string }{{"file", "functions"}, {"callable", "functions_callable"}} {
		var out bytes.Buffer
		if err := templates.ExecuteTemplate(&out, part.template, all); err != nil {
			return err
		}
		if err := known(out.String()); err != nil {
			return err
		}
		name := filepath.Join(to, fmt.Sprintf("%05d_%s%s.sql", number+i, part.name, suffix))
		if err := os.WriteFile(name, out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Command functions writes the migration of the SQL functions, for users of
// other languages: each wraps the text of statements of queries/*.sql, so that
// there is one source of what a decision is. The .tmpl files beside it are what
// limiter/ does around a statement: check the arguments, compile the policy,
// tell what the answer means.
//
// Run it from the module's root after queries/template, as make generate does.
//
// A function more over statements like Take (that return what Take returns) is
// an entry in functions, with a verb that says which statement it takes; one
// over other statements is a template, as command.tmpl is.
package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

// revision numbers the migration. A released one stays as it is: raise this
// with the first change after a release, and the next file is written beside
// it. Each makes all functions anew, so users who ran an earlier one get the
// new bodies. What CREATE OR REPLACE cannot do, such as another parameter,
// belongs at the beginning of the new one.
const revision = 1

//go:embed *.tmpl
var sources embed.FS

// algorithm is one table and its statements.
type algorithm struct {
	Table  string // its name in SQL
	Name   string // how its queries are named
	Family string // bucket, fixed, counter or log: whose arithmetic tells of its state
	Ticks  bool   // the bucket can leak in whole steps
	Queue  bool   // the bucket is a queue
}

// algorithms are in the order of limiter.Algorithms.
var algorithms = []algorithm{
	{Table: "leaky_bucket", Name: "LeakyBucket", Family: "bucket", Ticks: true},
	{Table: "leaky_bucket_queue", Name: "LeakyBucketQueue", Family: "bucket", Queue: true},
	{Table: "token_bucket", Name: "TokenBucket", Family: "bucket"},
	{Table: "gcra", Name: "GCRA", Family: "bucket"},
	{Table: "fixed_window", Name: "FixedWindow", Family: "fixed"},
	{Table: "sliding_window_counter", Name: "SlidingWindowCounter", Family: "counter"},
	{Table: "sliding_window_log", Name: "SlidingWindowLog", Family: "log"},
}

// unqueued are those of which something can be given back.
var unqueued = slices.DeleteFunc(slices.Clone(algorithms), func(a algorithm) bool { return a.Queue })

// parameter is one of a function's, as it is declared.
type parameter struct{ Name, Type, Default string }

// function is one function of schema pglimit.
type function struct {
	Name       string
	Template   string      // which one writes its body
	Verb       string      // what of the templates applies to it
	Algorithms []algorithm // one, or all: then it has a parameter algorithm
	About      string      // one sentence, the function's comment in the database
	Parameters []parameter

	read *statements
}

var (
	asker = []parameter{{"name", "text", ""}, {"key", "text", ""}}
	limit = []parameter{{"cost", "float8", "1"}, {"limit_units", "float8", "NULL"}, {"period_s", "float8", "NULL"}}
	burst = []parameter{{"burst", "float8", "NULL"}}
	tick  = []parameter{{"tick_s", "float8", "0"}}
	fixed = []parameter{{"aligned", "bool", "false"}, {"ends_at", "timestamptz", "NULL"}}
	ends  = []parameter{{"block_for_s", "float8", "0"}, {"now", "timestamptz", "NULL"}}
	which = []parameter{{"algorithm", "text", ""}}
)

// functions are all there are, in the order of the file.
func functions(read *statements) (all []function) {
	abouts := map[string]string{
		"leaky_bucket":           "Asks a leaky bucket for cost units, all or nothing; with tick_s it leaks in whole steps.",
		"leaky_bucket_queue":     "Asks for a place in a queue; delay_s is how long until its turn.",
		"token_bucket":           "Asks a token bucket for cost tokens, all or nothing.",
		"gcra":                   "Asks the generic cell rate algorithm for cost units, all or nothing.",
		"fixed_window":           "Asks for cost units of the running window, all or nothing: of period_s from the first hit, aligned to the clock, or until ends_at.",
		"sliding_window_counter": "Asks for cost units of the last period_s, which two counters approximate, all or nothing.",
		"sliding_window_log":     "Asks for cost units of the last period_s, exactly, all or nothing.",
	}
	for _, a := range algorithms {
		f := function{Name: a.Table, Template: "decide", Verb: "take", Algorithms: []algorithm{a}, About: abouts[a.Table]}
		f.Parameters = slices.Concat(asker, limit)
		switch {
		case a.Ticks:
			f.Parameters = slices.Concat(f.Parameters, burst, tick)
		case a.Family == "bucket":
			f.Parameters = slices.Concat(f.Parameters, burst)
		case a.Family == "fixed":
			f.Parameters = slices.Concat(f.Parameters, fixed)
		}
		f.Parameters = slices.Concat(f.Parameters, ends)
		all = append(all, f)
	}
	verb := func(name, template, verb, about string, more ...[]parameter) {
		of := algorithms
		if verb == "refund" || verb == "reserve" { // what waits in a queue is not given back
			of = unqueued
		}
		all = append(all, function{Name: name, Template: template, Verb: verb, Algorithms: of, About: about,
			Parameters: slices.Concat(which, asker, slices.Concat(more...))})
	}
	verb("allow_up_to", "decide", "up_to", "Asks for up to cost units and is granted what fits.", limit, burst, tick, fixed, ends)
	verb("check", "decide", "check", "Tells what an ask for cost units would be answered, and consumes nothing; at cost 0, how the key stands.", limit, burst, tick, fixed, ends)
	verb("fill", "decide", "fill", "Records cost units that were spent whatever the limit says.", limit, burst, tick, fixed, ends)
	verb("refund", "decide", "refund", "Gives cost units back, at most what is there.", limit, burst, tick, fixed, ends)
	verb("reserve", "decide", "reserve", "Sets cost units aside for ttl_s, all or nothing, until settle or cancel ends the hold.", limit, burst, tick, fixed,
		[]parameter{{"ttl_s", "float8", "NULL"}}, ends)
	all = append(all,
		function{Name: "settle", Template: "settle", Verb: "settle", Algorithms: unqueued,
			About:      "Ends a hold with what was really spent; what is left of it comes back.",
			Parameters: []parameter{{"hold", "text", ""}, {"units", "float8", ""}, {"now", "timestamptz", "NULL"}}},
		function{Name: "cancel", Template: "cancel", Verb: "cancel", Algorithms: unqueued,
			About:      "Ends a hold of which nothing was spent.",
			Parameters: []parameter{{"hold", "text", ""}, {"now", "timestamptz", "NULL"}}})
	verb("block", "command", "Block", "Denies the key for for_s seconds whatever it has used.",
		[]parameter{{"for_s", "float8", ""}, {"now", "timestamptz", "NULL"}})
	verb("unblock", "command", "Unblock", "Lifts the key's block and leaves what it has used.")
	verb("reset", "command", "Reset", "Forgets the key: what it has used and its block.")
	// What reserve, settle, cancel and every denial share.
	all = append(all,
		function{Name: "_settle", Template: "ending", Algorithms: unqueued, About: "Brings a hold to a state; nobody's API.",
			Parameters: []parameter{{"hold", "text", ""}, {"to_state", "text", ""}, {"units", "float8", ""}, {"at_us", "bigint", ""}}},
		function{Name: "_reap", Template: "reap", Algorithms: unqueued, About: "Gives back the key's expired holds and tells whether there was any; nobody's API.",
			Parameters: []parameter{{"algorithm", "text", ""}, {"name", "text", ""}, {"key", "text", ""}, {"at_us", "bigint", ""}}})
	for i := range all {
		all[i].read = read
	}
	return all
}

// Any tells whether the function can be asked for an algorithm of that family.
func (f function) Any(family string) bool {
	return slices.ContainsFunc(f.Algorithms, func(a algorithm) bool { return a.Family == family })
}

// Many tells whether the function has a parameter algorithm.
func (f function) Many() bool { return len(f.Algorithms) > 1 }

// Has tells whether the function has that parameter.
func (f function) Has(parameter string) bool { return f.position(parameter) > 0 }

// Is tells whether the function's verb is one of these.
func (f function) Is(verbs ...string) bool { return slices.Contains(verbs, f.Verb) }

// Families are those of the function's algorithms, each once.
func (f function) Families() (all []string) {
	for _, a := range f.Algorithms {
		if !slices.Contains(all, a.Family) {
			all = append(all, a.Family)
		}
	}
	return all
}

// In is SQL for: the algorithm asked for is one of that family.
func (f function) In(family string) string {
	var names []string
	for _, a := range f.Algorithms {
		if a.Family == family {
			names = append(names, quote(a.Table))
		}
	}
	return "algorithm IN (" + strings.Join(names, ", ") + ")"
}

// Of is the function for one of its algorithms.
func (f function) Of(a algorithm) function { f.Algorithms = []algorithm{a}; return f }

// Queue tells whether the function can be asked for a queue.
func (f function) Queue() bool {
	return slices.ContainsFunc(f.Algorithms, func(a algorithm) bool { return a.Queue })
}

// Returns is what the function returns.
func (f function) Returns() string {
	returns := map[string]string{
		"reserve": "pglimit.hold", "settle": "pglimit.settlement", "cancel": "void",
		"_settle": "pglimit._settled", "_reap": "bool",
	}[f.Name]
	switch {
	case returns != "":
		return returns
	case f.Template == "command":
		return "void"
	}
	return "pglimit.result"
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
	return strings.Join(all, ", ")
}

// position is the number of a parameter, from 1 on; 0 if there is none.
func (f function) position(parameter string) int {
	for i, p := range f.Parameters {
		if p.Name == parameter {
			return i + 1
		}
	}
	return 0
}

// Statement is the text of a query as plpgsql runs it: see statements.plpgsql.
func (f function) Statement(query string) (string, error) { return f.read.plpgsql(query) }

// Rows is the text of a query that returns many rows, for an expression.
func (f function) Rows(query string) (string, error) { return f.read.rows(query) }

// names are those of all algorithms, as a list in SQL.
func names() string {
	var all []string
	for _, a := range algorithms {
		all = append(all, quote(a.Table))
	}
	return strings.Join(all, ", ")
}

// list is names without the quotes.
func list() string { return strings.ReplaceAll(names(), "'", "") }

// quote makes a literal in SQL.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func main() {
	if err := run("queries", filepath.Join("migrations", "functions")); err != nil {
		fmt.Fprintln(os.Stderr, "queries/functions:", err)
		os.Exit(1)
	}
}

func run(from, to string) error {
	read, err := readStatements(from)
	if err != nil {
		return err
	}
	templates, err := template.New("").Funcs(template.FuncMap{"names": names, "list": list, "quote": quote}).ParseFS(sources, "*.tmpl")
	if err != nil {
		return err
	}
	file := struct {
		Functions []function
		Bodies    []string
	}{Functions: functions(read)}
	for _, f := range file.Functions {
		var body bytes.Buffer
		if err := templates.ExecuteTemplate(&body, f.Template, f); err != nil {
			return err
		}
		text, err := f.declare(tidy(body.String()))
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		file.Bodies = append(file.Bodies, text)
	}
	var out bytes.Buffer
	if err := templates.ExecuteTemplate(&out, "file", file); err != nil {
		return err
	}
	name := filepath.Join(to, fmt.Sprintf("%05d_functions.sql", revision))
	if revision > 1 { // a name of its own, for Export goes by it
		name = filepath.Join(to, fmt.Sprintf("%05d_functions_%d.sql", revision, revision))
	}
	return errors.Join(os.MkdirAll(to, 0o755), os.WriteFile(name, out.Bytes(), 0o644))
}

// tidy indents a function's body and takes out the empty lines that a template's
// branches leave. Lines that go on with a statement keep their place in it.
func tidy(text string) string {
	var b strings.Builder
	depth, goesOn, first := 1, false, 0
	for line := range strings.Lines(text) {
		words := strings.TrimSpace(line)
		if words == "" {
			continue
		}
		own := len(line) - len(strings.TrimLeft(line, " "))
		starts := func(keyword string) bool { return !goesOn && strings.HasPrefix(words, keyword) }
		if starts("END IF") || starts("END LOOP") || starts("ELS") {
			depth--
		}
		in := 4 * depth
		if goesOn {
			in += max(0, own-first)
		} else {
			first = own
		}
		b.WriteString(strings.Repeat(" ", in) + words + "\n")
		if starts("IF ") || starts("ELS") || words == "LOOP" || strings.HasSuffix(words, " LOOP") {
			depth++
		}
		code, _, _ := strings.Cut(words, " -- ")
		goesOn = !strings.HasPrefix(words, "--") && !strings.HasSuffix(code, ";") && !strings.HasSuffix(code, "THEN") && !strings.HasSuffix(code, "LOOP") && code != "ELSE"
	}
	return b.String()
}

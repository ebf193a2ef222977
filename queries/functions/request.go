package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// group is some fields of the type _request, as CREATE TYPE declares them.
type group struct {
	About string
	Names []string
	Last  bool
}

// fields are those of the type _request. The statements read their parameters from the
// fields of the same name, and what they return goes there.
var fields = []group{
	{About: "the call: the function, its algorithm, which statement it runs, whether the caller gave the clock, whether it is tried again, whether a denial lets pass, and whether it is counted",
		Names: []string{"verb text", "algorithm text", "statement text", "clocked bool", "again bool", "shadow bool", "counts bool"}},
	{About: "what is requested: units in all, count times cost; unit more have to fit for a next one",
		Names: []string{"policy text", "key text", "units float8", "cost float8", "count float8", "unit float8", "now_us bigint"}},
	{About: "the policy, compiled; the capacity is the burst with a slack for rounding, and the room is what of it a request may use",
		Names: []string{"limit_units float8", "burst float8", "capacity float8", "room float8", "leak float8", "tick_us bigint"}},
	{About: "for how long: a window, or when it ends if that is known; a block or, negated, what must stay free in millionths, and until the janitor looks at the row",
		Names: []string{"period_us bigint", "aligned bool", "turn_us bigint", "block_for_us bigint", "lifetime_us bigint"}},
	{About: "a block's length and the denial that begins it, and the end of the block to lift",
		Names: []string{"for_us bigint", "denied_at_us bigint", "until_us bigint"}},
	{About: "a reservation: its id and state, what it was, what is counted of it, and what ending it changed; of a key all open ones",
		Names: []string{"id text", "state text", "max_rows bigint", "reservations bigint", "reserved float8", "units_before float8", "expires_at_us bigint",
			"changes bool", "freed bool", "at_us bigint"}},
	{About: "how the key stands",
		Names: []string{"granted float8", "level float8", "updated_at_us bigint", "blocked_until_us bigint"}},
	{About: "of buckets, of windows, of logs",
		Names: []string{"leaked_at_us bigint", "ticket bigint", "ends_at_us bigint", "window_us bigint", "current float8", "previous float8",
			"newest_at_us bigint", "frees_at_us bigint"},
	},
	{About: "of balances: the lot of a grant, and what a usage has of them",
		Names: []string{"end_us bigint", "priority bigint", "source text", "debt float8", "total_granted float8", "total_spent float8", "total_expired float8", "lots text", "spent_lot bigint", "spent_end_us bigint", "spent_priority bigint"},
		Last:  true},
}

// trial are the fields of the type _trial, of attempts.
var trial = []string{"clocked bool", "now_us bigint", "policy text", "key text", "source text", "id text", "ttl_us bigint", "for_us bigint", "known_for_us bigint", "most_known bigint",
	"limit_failures bigint", "at_once bigint", "quiet_us bigint", "block_for_us bigint", "block_growth float8", "block_max_us bigint",
	"granted bool", "failures bigint", "waits_until_us bigint", "forget_at_us bigint", "blocked_until_us bigint", "updated_at_us bigint", "ends text"}

// holding are the fields of the type _holding, of slots.
var holding = []string{"clocked bool", "now_us bigint", "policy text", "key text", "id text", "cost bigint", "ttl_us bigint", "limit_units bigint", "period_us bigint",
	"granted bool", "held bigint", "fence bigint", "blocked_until_us bigint", "updated_at_us bigint", "slots bigint", "last_us bigint", "free_at_us bigint", "ends_at_us bigint"}

// bound are the fields of the type _bound, of the statements about a policy's keys.
var bound = []string{"policy text", "key text", "algorithm text", "now_us bigint", "lifetime_us bigint", "wanted bigint", "max_keys bigint", "keys bigint", "granted bigint", "left_us bigint"}

// row is a value of type _request as SQL, from names of fields and their values; the other
// fields are NULL. There is a line for each group of fields, indented by margin, that
// ends with their names.
func row(margin int, pairs ...string) (string, error) {
	values := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	var lines []string
	for _, g := range fields {
		var all, names []string
		for _, f := range g.Names {
			name, _, _ := strings.Cut(f, " ")
			value, ok := values[name]
			if !ok {
				value = "NULL"
			}
			delete(values, name)
			all, names = append(all, value), append(names, name)
		}
		line := strings.Join(all, ", ")
		if !g.Last {
			line += ","
		}
		lines = append(lines, line+" -- "+strings.Join(names, ", "))
	}
	for name := range values {
		return "", fmt.Errorf("the type _request has no field %s", name)
	}
	return "(\n" + indent(margin, strings.Join(lines, "\n")) + "\n" + strings.Repeat(" ", margin-4) + ")::pglimit._request", nil
}

// fieldNames are the names of the fields, in their order.
func fieldNames() string {
	var all []string
	for _, g := range fields {
		for _, f := range g.Names {
			name, _, _ := strings.Cut(f, " ")
			all = append(all, name)
		}
	}
	return broken(strings.Join(all, ", "), 150, "            ")
}

var mentioned = regexp.MustCompile(`\brequest\.([a-z]\w*)`)

// known returns an error if text mentions a field that _request does not have.
func known(text string) error {
	var names []string
	for _, g := range fields {
		for _, f := range g.Names {
			name, _, _ := strings.Cut(f, " ")
			names = append(names, name)
		}
	}
	for _, f := range slices.Concat(trial, holding, bound) {
		name, _, _ := strings.Cut(f, " ")
		names = append(names, name)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "--") {
			continue
		}
		for _, m := range mentioned.FindAllStringSubmatch(line, -1) {
			if !slices.Contains(names, m[1]) {
				return fmt.Errorf("the type _request has no field %s: add it to fields, and set it in a template", m[1])
			}
		}
	}
	return nil
}

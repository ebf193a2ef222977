package main

import "slices"

// manyKeys are the functions of several keys at once.
func manyKeys() []function {
	several := []parameter{{"names", "text[]", ""}, {"keys", "text[]", ""}}
	costs, floors := []parameter{{"costs", "float8[]", "NULL"}}, []parameter{{"floors", "float8[]", "NULL"}}
	once, held := []parameter{{"idempotency_key", "text", "NULL"}}, []parameter{{"reservations", "text[]", ""}}
	return []function{
		{Name: "allow_all", Template: "together", Algorithm: ofPolicy, Returns: "pglimit.results",
			About:      "Requests units under several policies and keys at once, all of them or none.",
			Parameters: slices.Concat(several, costs, now, floors, once)},
		{Name: "allow_any", Template: "any", Algorithm: ofPolicy, Returns: "pglimit.pools",
			About:      "Requests cost units of the first of several pools that has room for them; with split, of several together.",
			Parameters: slices.Concat(several, limit[:1], []parameter{{"split", "bool", "false"}}, now, floors, once)},
		{Name: "reserve_all", Template: "together", Algorithm: ofPolicy, Returns: "pglimit.reservations",
			About:      "Sets units aside under several policies and keys at once for ttl_s, all of them or none.",
			Parameters: slices.Concat(several, costs, ttl, now, floors, once)},
		{Name: "settle_all", Template: "endall", Returns: "SETOF pglimit.settlement",
			About:      "Ends several reservations with what was really spent, or none; units has one number for all, or one for each.",
			Parameters: slices.Concat(held, []parameter{{"units", "float8[]", ""}}, now)},
		{Name: "cancel_all", Template: "endall", Returns: "void",
			About:      "Ends several reservations of which nothing was spent, or none.",
			Parameters: slices.Concat(held, now)},
	}
}

// Reserves reports whether the function sets units aside.
func (f function) Reserves() bool { return f.Has("ttl_s") }

// RememberUs is for how long what was admitted is remembered after it expires.
func (file) RememberUs() int64 { return function{}.RememberUs() }

package search

import (
	"slices"
	"strings"
)

// Estimating makes a key's estimates learn.
const Estimating = "reserve reserve reserve reserve_up_to reserve_up_to settle settle settle settle settle settle settle cancel allow refund reset sweep begin commit rollback"

// Usual are all operations but batch, the usual ones more often.
const Usual = Ordinary + " once once once once once all all all all all all any any any split split split usage undo undo undo undo undo undo undo undo undo undo undo undo undo undo" +
	" begin begin begin commit commit commit rollback rollback rollback sweep sweep sweep sweep sweep sweep sweep sweep override"

// Ordinary are those that the SQL functions have, too.
const Ordinary = Simple + " refund refund refund refund reserve reserve reserve reserve reserve reserve reserve_up_to reserve_up_to reserve_up_to" +
	" settle settle settle settle settle settle cancel cancel cancel cancel cancel"

// Attempts are those of a Base of that algorithm.
const Attempts = "attempt attempt attempt attempt attempt attempt attempt attempt failed failed failed failed failed succeeded succeeded succeeded" +
	" check usage block unblock reset begin begin commit commit rollback sweep sweep"

// Slots are those of a Base of Concurrency.
const Slots = "acquire acquire acquire acquire acquire acquire acquire acquire renew renew renew release release release release" +
	" check usage block unblock reset begin begin commit commit rollback sweep sweep"

// Balances are those of a Base of that algorithm.
const Balances = "grant grant grant grant grant grant grant grant allow allow allow allow allow allow allow allow allow upto upto upto upto once once all all all" +
	" undo undo undo check usage usage charge refund refund block unblock reset begin begin commit commit rollback" +
	" reserve reserve reserve reserve reserve_up_to reserve_up_to settle settle settle settle cancel cancel cancel"

// Simple are those of every algorithm and without an ID.
const Simple = "allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow allow" +
	" upto upto upto upto upto upto upto upto check check charge charge charge charge block block unblock unblock reset reset"

// Without returns operations without some.
func Without(operations string, some ...string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(operations), func(op string) bool { return slices.Contains(some, op) }), " ")
}

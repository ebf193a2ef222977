package faults

import "slices"

// faults are the rows of the table, in its order. Each file of faults has a list.
var faults = slices.Concat(
	serverFaults,
	networkFaults,
	clientFaults,
	leaseFaults,
	answerFaults,
	diskFaults,
	failovers,
	janitorFaults,
	schemaFaults,
	clockFaults,
)

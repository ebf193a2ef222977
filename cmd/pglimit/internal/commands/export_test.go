package commands

// For the tests of the whole command line.
var (
	NewRoot       = newRoot
	AddCompletion = addCompletion
)

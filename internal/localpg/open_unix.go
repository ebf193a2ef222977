//go:build unix

package localpg

import "syscall"

// nonBlocking keeps the opening of a named pipe from waiting for a writer.
const nonBlocking = syscall.O_NONBLOCK

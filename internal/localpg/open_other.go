//go:build !unix

package localpg

const nonBlocking = 0

//go:build !unix

package datadir

import "os"

const openFlags = os.O_CREATE | os.O_RDWR

func foreignOwner(string) (string, error) { return "", nil }

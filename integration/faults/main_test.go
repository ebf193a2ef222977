// Package faults tests limiters under load while a server, its connections or their callers
// fail. Each fault is a row of a table that is printed at the end.
//
// go test runs the quick faults in a short form. PGLIMIT_TEST_FULL=1, as make faults sets
// it, runs all of them at full length, one after another, on the PostgreSQL programs of this
// machine.
package faults

import (
	"errors"
	"flag"
	"log"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	log.SetFlags(0)
	flag.Parse()
	code := m.Run()
	if err := errors.Join(printTable(os.Stdout), closeUsual()); err != nil {
		log.Printf("faults: %v", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Package testworld contains what the integration tests share. Each of the other directories is
// a package of tests whose TestMain calls Main, which gets a PostgreSQL server. Each test
// creates its databases there as copies of a template, so that all tests run in parallel.
//
// The tests come in two sizes. By default a property is tried on fewer random histories
// and the largest tests use fewer rows or seconds, so that all of them take a few minutes
// on two cores. PGLIMIT_TEST_FULL=1 selects the full size. PGLIMIT_SEARCH_HISTORIES is the
// number of random histories of each, and PGLIMIT_SEARCH_SEED selects others.
package testworld

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/pglimit/pglimit/pglimittest"
)

// server is started by Main and closed when the tests have ended.
var server *pglimittest.Server

// Main runs a package's tests on a PostgreSQL server (package pglimittest chooses it),
// removes what they left, and exits. parallel is the least number of tests that run at
// once, unless the command line sets it: 2 if tests keep two processors busy, more if they
// mostly wait.
func Main(m *testing.M, parallel int) {
	log.SetFlags(0)
	setFlags(parallel)
	code, err := run(m)
	if err != nil {
		log.Printf("integration: %v", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	server, err = pglimittest.Start(context.Background(), log.Printf)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, closeBouncer(), server.Close(), removeBinary()) }()
	return m.Run(), nil
}

// setFlags sets -test.parallel unless the command line does.
func setFlags(parallel int) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if set {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(max(parallel, runtime.GOMAXPROCS(0)))); err != nil {
		log.Fatalf("integration: set -test.parallel: %v", err)
	}
}

// Size returns the first of a number's two values by default, and the second one
// if PGLIMIT_TEST_FULL is set.
func Size[T any](usual, full T) T {
	if os.Getenv("PGLIMIT_TEST_FULL") != "" {
		return full
	}
	return usual
}

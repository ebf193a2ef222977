// Withpg runs a command with a new PostgreSQL database:
//
//	withpg -- COMMAND [ARGUMENT …]
//
// It starts a throwaway server (see package pglimittest), creates an empty database on it,
// runs COMMAND with DATABASE_URL set to that, removes both, and exits with COMMAND's
// status. Withpg also sets pglimittest.SharedURL, so that all test processes of COMMAND share
// the server. Without a COMMAND it only shows which server is available, after downloading
// or building what it needs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/pglimit/pglimit/pglimittest"
)

// dropTimeout is the timeout for dropping the database.
const dropTimeout = 30 * time.Second

// maxConnections is enough for the packages that go test runs concurrently.
const maxConnections = "1000"

// failed is the exit status if withpg itself fails. Commands rarely use it.
const failed = 125

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	} else if len(args) > 0 {
		fmt.Fprintln(os.Stderr, "usage: withpg [-- COMMAND ARGUMENT…]")
		os.Exit(2)
	}
	status, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpg:", err)
		if status == 0 {
			status = failed
		}
	}
	os.Exit(status)
}

// run does the whole work and returns the command's status.
func run(command []string) (status int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)

	// Before the command runs, a signal ends the preparation.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	prepared := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case s := <-signals:
			cancel(fmt.Errorf("%v", s))
		case <-prepared:
		}
	}()

	server, err := pglimittest.Start(ctx, logf, pglimittest.Setting("max_connections", maxConnections))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if len(command) == 0 {
		return 0, nil
	}
	address, drop, err := server.CreateDatabase(ctx, "withpg")
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		err = errors.Join(err, drop(ctx))
	}()
	close(prepared)
	<-watching
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return execute(command, []string{"DATABASE_URL=" + address, pglimittest.SharedURL + "=" + server.URL()}, signals)
}

// logf logs slow steps and the chosen server.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "withpg: "+format+"\n", args...)
}

// execute runs the command with the added environment variables, and forwards signals to
// it.
func execute(command, environment []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if !terminalSent(s) {
				_ = cmd.Process.Signal(s) // fails if the command has just ended
			}
		case err := <-ended:
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				return 0, err
			}
			return exitStatus(cmd.ProcessState), nil
		}
	}
}

// exitStatus returns the status like a shell: 128 + n after signal n.
func exitStatus(state *os.ProcessState) int {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return state.ExitCode()
}

package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gofrs/flock"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded/datadir"
	"github.com/pglimit/pglimit/internal/localpg"
)

// report is the one line that a keeper writes to the command that started it.
type report struct {
	Taken bool   `json:"taken,omitempty"` // another keeper is there
	Error string `json:"error,omitempty"`
}

// lockPatience is how long a keeper tries to get its lock. Commands lock it only
// briefly, to find out whether a keeper runs.
const lockPatience = time.Second

// held is keeper.lock in the keeper. It is never unlocked: other processes wait for
// the end of this process, when the system releases it.
var held *flock.Flock

// Keep runs the server on dir from the programs in bindir until no process uses it
// or ctx ends. The process must exit when Keep returns, which releases its locks.
// Keep reports the result of the start on out, the standard output of the command
// from Options.Keeper.
func Keep(ctx context.Context, dir, bindir string, out io.WriteCloser) error {
	say := func(r report) error { return errors.Join(json.NewEncoder(out).Encode(r), out.Close()) }

	d := datadir.Dir(dir)
	held = d.Keeper()
	trying, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	if ok, err := held.TryLockContext(trying, tick); !ok {
		if !errors.Is(err, context.DeadlineExceeded) {
			return errors.Join(err, say(report{Error: fmt.Sprint("lock ", held.Path(), ": ", err)}))
		}
		return say(report{Taken: true})
	}
	if err := d.RemoveState(); err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	// The last command to leave may stop the keeper while the server starts, and
	// needs its process ID for that. Without a URL the server is not ready.
	if err := d.WriteState(datadir.State{Keeper: os.Getpid()}); err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	defer d.RemoveState()

	server, err := localpg.Start(ctx, localpg.Options{BinDir: bindir, DataDir: d.Data()})
	if err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	defer server.Close()
	if err := d.WriteState(datadir.State{Keeper: os.Getpid(), URL: server.URL(), Version: server.Version()}); err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	if err := say(report{}); err != nil && ctx.Err() == nil {
		// The command that started us is gone, but others may use the server.
		fmt.Fprintln(os.Stderr, "report the start:", err)
	}

	alone := make(chan error, 1)
	users := d.Users()
	go func() { alone <- users.Lock() }() // never unlocked: no process may join a server that stops
	select {
	case err = <-alone:
	case <-ctx.Done():
	case <-server.Done():
		err = errors.New("the server ended")
	}
	// In this order, a command that joins now finds no server.json and waits for the
	// lock.
	return errors.Join(err, d.RemoveState(), server.Close())
}

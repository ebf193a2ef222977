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

// report is the one line a keeper says to the command that started it.
type report struct {
	Taken bool   `json:"taken,omitempty"` // another keeper is there
	Error string `json:"error,omitempty"`
}

// lockPatience is how long a keeper tries for its lock: commands hold it for
// moments, to see whether a keeper is there; a keeper, for long.
const lockPatience = time.Second

// held is keeper.lock in the keeper. It is never unlocked: the system does that
// when the process has ended, which is what others wait for.
var held *flock.Flock

// Keep is the keeper: it runs the server on dir from the programs in bindir
// until nobody uses it or ctx ends; the process is to end then, which releases
// its locks. To out, which has to be what Options.Keeper left for Join, it says
// how the start went.
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
	// The last to leave may want the keeper's end while the server starts; for
	// that it has to know who that is. Without a URL nobody takes it for ready.
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
		// Who started us is gone. Others may be here: the lock will tell.
		fmt.Fprintln(os.Stderr, "report the start:", err)
	}

	alone := make(chan error, 1)
	users := d.Users()
	go func() { alone <- users.Lock() }() // held to the end: nobody joins a server that stops
	select {
	case err = <-alone:
	case <-ctx.Done():
	case <-server.Done():
		err = errors.New("the server ended")
	}
	// In this order: who joins now finds no server.json, and waits for the lock.
	return errors.Join(err, d.RemoveState(), server.Close())
}

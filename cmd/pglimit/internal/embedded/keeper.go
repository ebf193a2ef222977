package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

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

	held = keeperLock(dir)
	trying, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	if ok, err := held.TryLockContext(trying, tick); !ok {
		if !errors.Is(err, context.DeadlineExceeded) {
			return errors.Join(err, say(report{Error: fmt.Sprint("lock ", held.Path(), ": ", err)}))
		}
		return say(report{Taken: true})
	}
	if err := removeState(dir); err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	// The last to leave may want the keeper's end while the server starts; for
	// that it has to know who that is. Without a URL nobody takes it for ready.
	if err := writeState(dir, state{Keeper: os.Getpid()}); err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	defer removeState(dir)

	server, err := localpg.Start(ctx, localpg.Options{BinDir: bindir, DataDir: dataDir(dir)})
	if err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	defer server.Close()
	if err := writeState(dir, state{os.Getpid(), server.URL(), server.Version()}); err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	if err := say(report{}); err != nil && ctx.Err() == nil {
		// Who started us is gone. Others may be here: the lock will tell.
		fmt.Fprintln(os.Stderr, "report the start:", err)
	}

	alone := make(chan error, 1)
	users := usersLock(dir)
	go func() { alone <- users.Lock() }() // held to the end: nobody joins a server that stops
	select {
	case err = <-alone:
	case <-ctx.Done():
	case <-server.Done():
		err = errors.New("the server ended")
	}
	// In this order: who joins now finds no server.json, and waits for the lock.
	return errors.Join(err, removeState(dir), server.Close())
}

func removeState(dir string) error {
	err := os.Remove(stateFile(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// writeState puts a whole server.json in place. It holds the server's
// password, so it is for the directory's owner only.
func writeState(dir string, s state) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(stateFile(dir))+".*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), stateFile(dir))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

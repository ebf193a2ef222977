// Package embedded shares one PostgreSQL server per directory among the
// commands that use it at the same time: the first starts it, others join,
// and it stops with the last.
//
// The server belongs to no command but to a keeper, a process of its own that
// a command starts, so that the first may end before the others. Two locks in
// the directory say who is there; the system releases them when their process
// ends, kill -9 included, so that no claim outlives who made it:
//
//   - users.lock is held shared by each command while it uses the server. The
//     keeper waits to have it alone: then nobody is left, it stops the server
//     and ends. A command that comes meanwhile waits for the lock, and then
//     starts another keeper.
//   - keeper.lock is held by the keeper as long as it lives. Whoever can have
//     it knows that no keeper runs. server.json, which the keeper writes when
//     its server is ready, counts only while keeper.lock is held.
//
// If the keeper itself is killed, localpg ends the server; PostgreSQL's own
// postmaster.pid keeps the next keeper from starting one before that is done.
package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/gofrs/flock"
	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded/datadir"
	"github.com/pglimit/pglimit/internal/localpg"
)

const (
	joinTimeout  = 2 * time.Minute // an initdb on a slow disk, and one more server's end before it
	leaveTimeout = 20 * time.Second
	tick         = 10 * time.Millisecond // between two looks at a lock
)

// Options of Join.
type Options struct {
	// Dir holds the locks and the data. It is made if it is missing.
	Dir string
	// Find returns the directory of the server programs, of a major version
	// ("17") if the data are of one, else of any. It is asked only if no server
	// runs on Dir.
	Find func(ctx context.Context, major string) (bindir string, err error)
	// Keeper prepares a command that calls Keep with the same arguments and its
	// standard output.
	Keeper func(dir, bindir string) (*exec.Cmd, error)
}

// Session is one command's use of the server.
type Session struct {
	dir     datadir.Dir
	state   datadir.State
	started bool
	users   *flock.Flock
}

// URL connects to the server as its superuser.
func (s *Session) URL() string { return s.state.URL }

// Version is the server's version, such as "17.5".
func (s *Session) Version() string { return s.state.Version }

// Dir is the directory, as an absolute path.
func (s *Session) Dir() string { return string(s.dir) }

// Started tells whether Join started the server, or else found it running.
func (s *Session) Started() bool { return s.started }

// Join makes the calling process a user of the server on o.Dir and starts the
// server if none runs. It returns once the server answers. Leave ends the use;
// so does the end of the process.
func Join(ctx context.Context, o Options) (_ *Session, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	s := &Session{}
	if s.dir, err = datadir.Prepare(o.Dir); err != nil {
		return nil, err
	}
	s.users = s.dir.Users()
	// This waits while a server that nobody used any more is stopping.
	if ok, err := s.users.TryRLockContext(ctx, tick); !ok {
		return nil, fmt.Errorf("wait for %s, whose server is stopping: %w", s.users.Path(), err)
	}
	defer func() {
		if err != nil {
			_ = s.Leave() // the first error is the one to report
		}
	}()
	for {
		kept, err := s.kept()
		if err != nil {
			return nil, err
		}
		if !kept {
			if s.started, err = s.start(ctx, o); err != nil {
				return nil, err
			}
		} else if s.state, err = s.dir.ReadState(); err == nil && s.state.URL != "" {
			// While a keeper starts, the file may be its predecessor's.
			if err = s.ping(ctx); err == nil {
				return s, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the server on %s: %w", s.dir, errors.Join(ctx.Err(), err))
		case <-time.After(tick):
		}
	}
}

// kept tells whether a keeper runs.
func (s *Session) kept() (bool, error) {
	lock := s.dir.Keeper()
	free, err := lock.TryRLock()
	if err != nil {
		return false, err
	}
	return !free, lock.Unlock()
}

// start starts a keeper and waits for what it says. It is false without an
// error if another command's keeper was faster.
func (s *Session) start(ctx context.Context, o Options) (bool, error) {
	major, err := localpg.DataMajor(s.dir.Data())
	if err != nil {
		return false, err
	}
	bindir, err := o.Find(ctx, major)
	if err != nil {
		return false, err
	}
	cmd, err := o.Keeper(s.Dir(), bindir)
	if err != nil {
		return false, err
	}
	log, err := s.dir.OpenLog()
	if err != nil {
		return false, err
	}
	defer log.Close() // the keeper has its own copy
	cmd.Dir = s.Dir()
	cmd.Stderr = log
	ownSession(cmd)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	said, ended := make(chan report, 1), make(chan struct{})
	go func() {
		defer close(ended)
		var r report
		if err := json.NewDecoder(stdout).Decode(&r); err != nil {
			r = report{Error: fmt.Sprintf("the process that keeps the server ended without a word; see %s", log.Name())}
		}
		said <- r
		_ = cmd.Wait() // how it ended matters to nobody any more
	}()
	select {
	case r := <-said:
		if r.Error != "" {
			return false, errors.New(r.Error)
		}
		return !r.Taken, nil
	case <-ctx.Done():
		// Others who wait for this keeper start one of their own.
		terminate(cmd.Process)
		select {
		case <-ended:
		case <-time.After(leaveTimeout):
		}
		return false, ctx.Err()
	}
}

func (s *Session) ping(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.state.URL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Leave ends the use of the server. If nobody else uses it, Leave stops it and
// returns when it has stopped. Further calls do nothing.
func (s *Session) Leave() error {
	if !s.users.RLocked() && !s.users.Locked() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	last, err := s.users.TryLock()
	if err != nil {
		return errors.Join(err, s.users.Unlock())
	}
	if last {
		// With the lock alone in our hands nobody can join until it is over.
		if !stopKeeper(s.dir) {
			err = s.users.Unlock() // then the keeper gets the lock, and ends
		}
		return errors.Join(err, s.awaitKeeper(ctx), s.users.Unlock())
	}
	// Trying lost the shared lock: another user is there, or the keeper, about
	// to end. If the latter, its end is still ours to await.
	if err := s.users.Unlock(); err != nil {
		return err
	}
	if shared, err := s.users.TryRLock(); shared || err != nil {
		return errors.Join(err, s.users.Unlock())
	}
	return s.awaitKeeper(ctx)
}

// awaitKeeper returns when no keeper runs.
func (s *Session) awaitKeeper(ctx context.Context) error {
	lock := s.dir.Keeper()
	if _, err := lock.TryRLockContext(ctx, tick); err != nil {
		return fmt.Errorf("stop the server on %s: %w", s.dir, err)
	}
	return lock.Unlock()
}

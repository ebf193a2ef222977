// Package embedded shares one PostgreSQL server per directory among the commands
// that use it at the same time. The first command starts the server, others join,
// and it stops with the last.
//
// A separate process runs the server, the keeper, so that the first command may
// end before the others. Two locks in the directory record the processes. The
// system releases them when their process ends, even after kill -9:
//
//   - users.lock is shared by all commands that use the server. The keeper waits
//     for exclusive use of it. When it gets that, no command is left: it stops the
//     server and ends. A command that starts meanwhile waits for the lock, and then
//     starts another keeper.
//   - keeper.lock is locked by the keeper while it runs. A process that can lock it
//     knows that no keeper runs. The keeper writes server.json when its server is
//     ready; the file is valid only while keeper.lock is locked.
//
// If the keeper is killed, localpg ends the server. PostgreSQL's postmaster.pid
// prevents the next keeper from starting a server before that. A container ends with
// its standard input; the next keeper removes one that is left.
package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/gofrs/flock"
	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/localpg"
)

// KeepCommand is the hidden command of this program that calls Keep with its two arguments
// and its standard output.
const KeepCommand = "keep-embedded"

const (
	joinTimeout  = 2 * time.Minute // enough for stopping a server, and an initdb on a slow disk
	leaveTimeout = 20 * time.Second
	tick         = 10 * time.Millisecond // between two attempts to lock
)

// Session is one command's use of the server.
type Session struct {
	// Dir is the directory, as an absolute path.
	Dir Dir
	// State has the server's URL, for its superuser, and its version, such as "17.5".
	State
	// Started reports whether Join started the server; if not, it was running.
	Started bool

	users *flock.Flock
}

// Join registers the process as a user of the server on dir, which it creates if it is
// missing, and starts the server if none runs: by this program's command KeepCommand. It
// returns once the server answers, or an error after two minutes. Leave or the end of the
// process ends the use. logf receives what takes long.
func Join(ctx context.Context, dir string, logf func(string, ...any)) (_ *Session, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	s := &Session{}
	if s.Dir, err = prepare(dir); err != nil {
		return nil, err
	}
	s.users = s.Dir.Users()
	// This waits while an unused server is stopping.
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
			if s.Started, err = s.start(ctx, logf); err != nil {
				return nil, err
			}
		} else if s.State, err = s.Dir.ReadState(); err == nil && s.URL != "" {
			// While a keeper starts, the file may be its predecessor's.
			if err = s.ping(ctx); err == nil {
				return s, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the server on %s: %w", s.Dir, errors.Join(ctx.Err(), err))
		case <-time.After(tick):
		}
	}
}

// kept reports whether a keeper runs.
func (s *Session) kept() (bool, error) {
	lock := s.Dir.Keeper()
	free, err := lock.TryRLock()
	if err != nil {
		return false, err
	}
	return !free, lock.Unlock()
}

// findPrograms returns the directory of the installed server programs, or "" for a
// container if none are installed, a Docker engine has the image, and major, the version of
// the data, is empty: there are none.
func findPrograms(ctx context.Context, major string, logf func(string, ...any)) (bindir string, err error) {
	bindir, _, err = localpg.Find(major)
	if errors.Is(err, localpg.ErrNotFound) && major == "" {
		dockerErr := pull(ctx, logf)
		if dockerErr == nil {
			return "", nil
		}
		err = fmt.Errorf("%w; or let Docker run one: %w", err, dockerErr)
	}
	return bindir, err
}

// start starts a keeper and waits for its report. It returns false without an error
// if another command's keeper was faster.
func (s *Session) start(ctx context.Context, logf func(string, ...any)) (bool, error) {
	major, err := localpg.DataMajor(s.Dir.Data())
	if err != nil {
		return false, err
	}
	bindir, err := findPrograms(ctx, major, logf)
	if err != nil {
		return false, err
	}
	program, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("find the path of this program, to run the keeper: %w", err)
	}
	cmd := exec.Command(program, KeepCommand, "--", string(s.Dir), bindir)
	log, err := s.Dir.OpenLog()
	if err != nil {
		return false, err
	}
	defer log.Close() // the keeper has its own copy
	cmd.Dir = string(s.Dir)
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
			r = report{Error: fmt.Sprintf("the process that runs the server ended without a report; see %s", log.Name())}
		}
		said <- r
		_ = cmd.Wait() // its exit code does not matter
	}()
	select {
	case r := <-said:
		if r.Error != "" {
			return false, errors.New(r.Error)
		}
		return !r.Taken, nil
	case <-ctx.Done():
		// Commands that wait for this keeper start another.
		terminate(cmd.Process)
		select {
		case <-ended:
		case <-time.After(leaveTimeout):
		}
		return false, ctx.Err()
	}
}

func (s *Session) ping(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Leave ends the use of the server. If no other process uses it, Leave stops the
// server and returns when it has stopped. Further calls do nothing.
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
		// With the exclusive lock no process can join until the server has stopped.
		if !stopKeeper(s.Dir) {
			err = s.users.Unlock() // then the keeper gets the lock, and ends
		}
		return errors.Join(err, s.awaitKeeper(ctx), s.users.Unlock())
	}
	// TryLock released the shared lock. If that can be had again, another user keeps the
	// server. Otherwise the keeper has the exclusive lock and is about to end.
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
	lock := s.Dir.Keeper()
	if _, err := lock.TryRLockContext(ctx, tick); err != nil {
		return fmt.Errorf("stop the server on %s: %w", s.Dir, err)
	}
	return lock.Unlock()
}

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

// Keep runs the server on dir from the programs in bindir, or in a container if bindir
// is empty, until no process uses it or ctx ends. The process must exit when Keep returns, which releases its locks.
// Keep reports the result of the start on out, the standard output of KeepCommand.
func Keep(ctx context.Context, dir, bindir string, out io.WriteCloser) error {
	say := func(r report) error { return errors.Join(json.NewEncoder(out).Encode(r), out.Close()) }

	d := Dir(dir)
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
	if err := d.WriteState(State{Keeper: os.Getpid()}); err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	defer d.RemoveState()

	var server interface {
		URL() string
		Version() string
		Done() <-chan struct{}
		Close() error
	}
	var err error
	if bindir == "" {
		server, err = startContainer(ctx, d)
	} else {
		server, err = localpg.Start(ctx, localpg.Options{BinDir: bindir, DataDir: d.Data()})
	}
	if err != nil {
		return errors.Join(err, say(report{Error: err.Error()}))
	}
	defer server.Close()
	if err := d.WriteState(State{Keeper: os.Getpid(), URL: server.URL(), Version: server.Version()}); err != nil {
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

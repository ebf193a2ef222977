package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/internal/must"
)

// disk is a small file system in memory that a filler can fill. What was written stays
// there when a server is killed, as on a real disk.
type disk struct {
	dir  string
	stop context.CancelFunc
	ends sync.WaitGroup
}

// newDisk mounts a file system of megabytes MB and unmounts it after the test. It needs
// root. A limit of a process, such as the size of its files, would give other errors than a full
// disk.
func newDisk(t *testing.T, megabytes int) *disk {
	t.Helper()
	d := &disk{dir: openDir(t), stop: func() {}}
	if os.Geteuid() != 0 {
		t.Fatal("this fault mounts small file systems, which only root may: run it as root, for example in a container, or leave it out with -skip 'TestFaults/.*disk'")
	}
	run(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=1777", megabytes), "tmpfs", d.dir)
	t.Cleanup(func() {
		d.free(t)
		run(t, "umount", d.dir)
	})
	return d
}

func (d *disk) filler() string { return filepath.Join(d.dir, "filler") }

// room returns the bytes that are free.
func (d *disk) room() (int64, error) {
	var s syscall.Statfs_t
	err := syscall.Statfs(d.dir, &s)
	return int64(s.Bavail) * s.Bsize, err
}

// fill takes all that is free, and what becomes free later, until free.
func (d *disk) fill(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	d.stop = stop
	f := must.OK(os.OpenFile(d.filler(), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600))(t)
	take := func() {
		if room, err := d.room(); err == nil && room > 0 {
			_, _ = f.Write(make([]byte, room)) // the server may be faster
		}
	}
	take()
	d.ends.Go(func() {
		defer f.Close()
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				take()
			}
		}
	})
}

// free gives the space back.
func (d *disk) free(t *testing.T) {
	t.Helper()
	d.stop()
	d.ends.Wait()
	if err := os.Remove(d.filler()); err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
}

// diskFaults fill the disk of the data or that of the WAL.
var diskFaults = []fault{
	fillDisk("full disk of the data", func(data, _ *disk) *disk { return data }, someRequestsFail),
	fillDisk("full disk of the WAL", func(_, wal *disk) *disk { return wal }, sessionsEnd),
}

// fillDisk is a fault of a server whose data and WAL are on a disk each. It fills one until
// done returns, and a little longer. Then the disk has room again, and the server is
// started if it has ended.
func fillDisk(name string, which func(data, wal *disk) *disk, done func(ctx context.Context, t *testing.T, s *scene)) fault {
	var own *localpg.Server
	var full *disk
	return fault{
		name: name,
		server: func(t *testing.T) *server {
			data, wal := newDisk(t, 160), newDisk(t, 64)
			full = which(data, wal)
			own = startServer(t, localpg.Options{
				DataDir: filepath.Join(data.dir, "data"),
				BinDir:  programs(t, nil, "--wal-segsize=1", "--waldir="+filepath.Join(wal.dir, "wal")),
				// Small, so that the WAL has no old files to use again.
				Settings: map[string]string{"max_connections": "300", "min_wal_size": "2MB"},
			})
			return serverOf(own)
		},
		do: func(ctx context.Context, t *testing.T, s *scene) {
			full.fill(t)
			done(ctx, t, s)
			s.let(2 * time.Second)
			full.free(t)
			select {
			case <-own.Done():
				must.Succeed(t, own.Restart(ctx))
			default:
			}
			eventually(t, "the server writes again", func(ctx context.Context) error {
				_, err := s.pool.Exec(ctx, "CREATE TABLE written_again AS SELECT generate_series(1, 10000)")
				return err
			})
		},
	}
}

// someRequestsFail returns once requests have failed because a table could not grow. The
// rows that are updated in their pages need no room.
func someRequestsFail(ctx context.Context, t *testing.T, s *scene) {
	_, before := s.times.count()
	eventually(t, "100 requests fail, and a table cannot grow", func(ctx context.Context) error {
		if _, failed := s.times.count(); failed < before+100 {
			return fmt.Errorf("%d requests failed", failed-before)
		}
		_, err := s.pool.Exec(ctx, "CREATE TABLE too_large AS SELECT generate_series(1, 100000)")
		if answer := (*pgconn.PgError)(nil); !errors.As(err, &answer) || answer.Code != diskFull {
			return fmt.Errorf("a table could grow: %v", err)
		}
		return nil
	})
}

const diskFull = "53100"

// sessionsEnd returns once the server has ended its sessions: it cannot write the WAL, and
// panics.
func sessionsEnd(ctx context.Context, t *testing.T, s *scene) {
	conn := must.OK(pgx.Connect(ctx, s.address))(t)
	defer conn.Close(context.WithoutCancel(ctx))
	eventually(t, "the server ends its sessions", func(ctx context.Context) error {
		if _, err := conn.Exec(ctx, "SELECT 1"); err == nil || ctx.Err() != nil {
			return errors.New("a session goes on")
		}
		return nil
	})
}

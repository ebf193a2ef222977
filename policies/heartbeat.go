package policies

import (
	"cmp"
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// heartbeat lists this program in pglimit_program while it runs.
type heartbeat struct {
	// every is the time between two writes. A change is written within about a second.
	every time.Duration
	// state returns the version of the policies that this program has loaded, and its default
	// policies as JSON. It reports false while none is loaded: then nothing is written.
	state func() (version int64, defaults string, loaded bool)
	// failed gets the first error of several in a row.
	failed func(ctx context.Context, err error)

	database *database
	program  db.ProgramPublishParams
	started  time.Time
	changed  chan struct{}
	listed   bool
	failing  bool
}

// settle is about how long a change waits to be written, so that changes in a row share a write,
// and a program that ends at once is not listed.
const settle = time.Second

// newHeartbeat returns a heartbeat that writes to a database. name is the program's; if empty,
// that of its file.
func newHeartbeat(database *database, name string, every time.Duration) *heartbeat {
	host, _ := os.Hostname()
	text := func(s string) string { return strings.ToValidUTF8(s, "�") }
	return &heartbeat{
		every: every, database: database, started: time.Now(), changed: make(chan struct{}, 1),
		program: db.ProgramPublishParams{
			Instance: rand.Text(), Name: text(cmp.Or(name, filepath.Base(os.Args[0]))), Host: text(host), Pid: int64(os.Getpid()),
			Library: library(debug.ReadBuildInfo()), HeartbeatS: every.Seconds(),
		},
	}
}

// library returns the version of pglimit in a program.
func library(info *debug.BuildInfo, ok bool) string {
	const unknown = "unknown"
	if !ok {
		return unknown
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == "github.com/pglimit/pglimit" {
			return cmp.Or(m.Version, "(devel)")
		}
	}
	return unknown
}

// change makes run write soon. It does not wait. It may be called on nil.
func (h *heartbeat) change() {
	if h == nil {
		return
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then deletes the program's row.
func (h *heartbeat) run(ctx context.Context) {
	next := time.NewTimer(h.every)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			h.leave()
			return
		case <-h.changed:
			next.Reset(jitter(settle))
			select {
			case <-next.C:
			case <-ctx.Done():
				continue
			}
		case <-next.C:
		}
		h.beat(ctx)
		next.Reset(jitter(h.every))
	}
}

// beat writes the program's row. The statement goes on if ctx ends: what a server has not read
// yet could write the row after it was deleted.
func (h *heartbeat) beat(ctx context.Context) {
	version, defaults, loaded := h.state()
	if !loaded {
		return
	}
	h.program.PoliciesVersion, h.program.Defaults, h.program.RunningUs = version, defaults, time.Since(h.started).Microseconds()
	h.listed = true
	err := h.send(aliveIn, func(ctx context.Context, tx db.DBTX) error {
		return h.database.statements.ProgramPublish(ctx, tx, h.program)
	})
	if err != nil && !h.failing && ctx.Err() == nil {
		h.failed(ctx, err)
	}
	h.failing = err != nil
}

// leave deletes the program's row. If it cannot, others do so after a day.
func (h *heartbeat) leave() {
	if h.listed {
		_ = h.send(time.Second, func(ctx context.Context, tx db.DBTX) error {
			return h.database.statements.ProgramLeave(ctx, tx, h.program.Instance)
		})
	}
}

func (h *heartbeat) send(in time.Duration, f func(context.Context, db.DBTX) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), in)
	defer cancel()
	return explain(h.database.run.Run(ctx, exec.Statement, func(tx db.DBTX) error { return f(ctx, tx) }))
}

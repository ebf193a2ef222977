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

// Heartbeat lists this program in pglimit_program while it runs.
type Heartbeat struct {
	// Every is the time between two writes. A change is written within about a second.
	Every time.Duration
	// State returns the version of the policies that this program has loaded, and its default
	// policies as JSON. It reports false while none is loaded: then nothing is written.
	State func() (version int64, defaults string, loaded bool)
	// Failed gets the first error of several in a row.
	Failed func(ctx context.Context, err error)

	store   *Database
	program db.ProgramPublishParams
	started time.Time
	changed chan struct{}
	listed  bool
	failing bool
}

// settle is about how long a change waits to be written, so that changes in a row share a write,
// and a program that ends at once is not listed.
const settle = time.Second

// NewHeartbeat returns a Heartbeat that writes to a database. name is the program's; if empty,
// that of its file.
func NewHeartbeat(store *Database, name string, every time.Duration) *Heartbeat {
	host, _ := os.Hostname()
	text := func(s string) string { return strings.ToValidUTF8(s, "�") }
	return &Heartbeat{
		Every: every, store: store, started: time.Now(), changed: make(chan struct{}, 1),
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

// Changed makes Run write soon. It does not wait. It may be called on nil.
func (h *Heartbeat) Changed() {
	if h == nil {
		return
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends, and then deletes the program's row.
func (h *Heartbeat) Run(ctx context.Context) {
	next := time.NewTimer(h.Every)
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
		next.Reset(jitter(h.Every))
	}
}

// beat writes the program's row. The statement goes on if ctx ends: what a server has not read
// yet could write the row after it was deleted.
func (h *Heartbeat) beat(ctx context.Context) {
	version, defaults, loaded := h.State()
	if !loaded {
		return
	}
	h.program.PoliciesVersion, h.program.Defaults, h.program.RunningUs = version, defaults, time.Since(h.started).Microseconds()
	h.listed = true
	err := h.run(aliveIn, func(ctx context.Context, tx db.DBTX) error {
		return h.store.statements.ProgramPublish(ctx, tx, h.program)
	})
	if err != nil && !h.failing && ctx.Err() == nil {
		h.Failed(ctx, err)
	}
	h.failing = err != nil
}

// leave deletes the program's row. If it cannot, others do so after a day.
func (h *Heartbeat) leave() {
	if h.listed {
		_ = h.run(time.Second, func(ctx context.Context, tx db.DBTX) error {
			return h.store.statements.ProgramLeave(ctx, tx, h.program.Instance)
		})
	}
}

func (h *Heartbeat) run(in time.Duration, f func(context.Context, db.DBTX) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), in)
	defer cancel()
	return explain(h.store.run.Run(ctx, exec.Statement, func(tx db.DBTX) error { return f(ctx, tx) }))
}

package serve

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
)

// lookEvery is the time between two looks at files. They are compared by content, which no
// clock and no symbolic link of a mounted volume can deceive.
const lookEvery = 2 * time.Second

// followed are files whose changes are used while the server runs.
type followed struct {
	what  string // in logs
	paths []string
	// use takes the files' contents. If it returns an error, the last ones stay in use.
	use  func(contents [][]byte) error
	last [][]byte
}

// read reads the files.
func (f *followed) read() (all [][]byte, err error) {
	for _, path := range f.paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, content)
	}
	return all, nil
}

// start uses the files for the first time.
func (f *followed) start() (err error) {
	if f.last, err = f.read(); err == nil {
		err = f.use(f.last)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.what, err)
	}
	return nil
}

// look uses the files if they have changed. It reports each fault once.
func (f *followed) look(logger *slog.Logger, fault *string) {
	now, err := f.read()
	if err == nil {
		same := true
		for i := range now {
			same = same && bytes.Equal(now[i], f.last[i])
		}
		if same {
			*fault = ""
			return
		}
		if err = f.use(now); err == nil {
			f.last, *fault = now, ""
			logger.Info("pglimit: changed files are in use", "what", f.what, "files", strings.Join(f.paths, " "))
			return
		}
	}
	if *fault != err.Error() {
		*fault = err.Error()
		logger.Error("pglimit: changed files are not valid; the last ones stay in use", "what", f.what, "error", err)
	}
}

// follow looks at the files until ctx ends.
func (f *followed) follow(ctx context.Context, every time.Duration, logger *slog.Logger) {
	t := time.NewTicker(every)
	defer t.Stop()
	fault := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f.look(logger, &fault)
		}
	}
}

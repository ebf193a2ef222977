package servers

import (
	"errors"
	"os"
	"slices"
	"time"
)

// SyncTime measures the median time to write and sync a page in the directory for
// temporary files, where the servers' data are. The cost of durable decisions depends on
// it.
func SyncTime() (time.Duration, error) {
	f, err := os.CreateTemp("", "pglimit-sync-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 8192)
	times := make([]time.Duration, 51)
	for i := range times {
		begin := time.Now()
		_, written := f.WriteAt(page, 0)
		err = errors.Join(err, written, f.Sync())
		times[i] = time.Since(begin)
	}
	slices.Sort(times)
	return times[len(times)/2], err
}

package replays

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/site/api"
)

// minShared is the least number of bytes a second of an upload that keeps its turn while
// another replay waits.
const minShared = 1 << 20

// errGaveWay is the error of an upload that another replay ended.
var errGaveWay = api.Unavailable("the upload was slower than 1 MiB a second while another replay waited: try again later, send a compressed file, or use pglimit replay")

// upload is the body of a running replay.
type upload struct {
	io.Reader
	begun time.Time
	n     atomic.Int64 // bytes read
	ended atomic.Bool
	cut   func() // ends a read in progress
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	u.n.Add(int64(n))
	if u.ended.Load() {
		return 0, errGaveWay
	}
	return n, err
}

// begin begins the upload of a replay that has its turn; end ends it.
func (s *Server) begin(body io.Reader, cut func()) *upload {
	u := &upload{Reader: body, begun: time.Now(), cut: cut}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uploads[u] = struct{}{}
	return u
}

func (s *Server) end(u *upload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uploads, u)
}

// turn waits for a turn. If there is none for a while, an upload that is slow gives way.
func (s *Server) turn(ctx context.Context) error {
	select {
	case s.turns <- struct{}{}:
		return nil
	default:
	}
	waiting, enough := context.WithTimeout(ctx, s.wait)
	defer enough()
	impatient := time.NewTicker(s.patience)
	defer impatient.Stop()
	for {
		select {
		case s.turns <- struct{}{}:
			return nil
		case <-impatient.C:
			s.giveWay()
		case <-waiting.Done():
			return api.Unavailable(fmt.Sprintf("%d replays are running already: try again when one has ended", maxReplays))
		}
	}
}

// giveWay ends the slowest upload that has had its time, if it is slow.
func (s *Server) giveWay() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var slowest *upload
	least := float64(minShared)
	for u := range s.uploads {
		age := time.Since(u.begun)
		if rate := float64(u.n.Load()) / age.Seconds(); age >= s.patience && rate < least {
			slowest, least = u, rate
		}
	}
	if slowest != nil {
		delete(s.uploads, slowest)
		slowest.ended.Store(true)
		slowest.cut()
	}
}

package api

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// TestPace: a body that has failed once does not go on, even if its first reader
// drops the error.
func TestPace(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, c := range []struct{ err, want error }{{broken, broken}, {os.ErrDeadlineExceeded, &Problem{Status: http.StatusRequestTimeout}}} {
		r := httptest.NewRequest(http.MethodPost, "/", &failingOnce{err: c.err})
		_, r = Pace(httptest.NewRecorder(), r, time.Minute)
		for range 2 {
			_, err := io.ReadAll(r.Body)
			var got, want *Problem
			if errors.As(c.want, &want) {
				if !errors.As(err, &got) || got.Status != want.Status {
					t.Errorf("%v: got %v", c.err, err)
				}
			} else if !errors.Is(err, c.want) {
				t.Errorf("%v: got %v", c.err, err)
			}
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/", &failingOnce{})
	_, r = Pace(httptest.NewRecorder(), r, time.Minute)
	if text, err := io.ReadAll(r.Body); err != nil || string(text) != "more" {
		t.Errorf("got %q, %v", text, err)
	}
}

// failingOnce fails at the first Read, unless err is nil, and has more afterwards.
type failingOnce struct {
	err  error
	more bool
}

func (f *failingOnce) Read(p []byte) (int, error) {
	if err := f.err; err != nil {
		f.err = nil
		return 0, err
	}
	if f.more {
		return 0, io.EOF
	}
	f.more = true
	return copy(p, "more"), nil
}

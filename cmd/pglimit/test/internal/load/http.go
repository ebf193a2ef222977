// Package load ends servers while clients send requests, and counts the answers.
package load

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// EndHTTP calls end, which ends a server by SIGTERM, while clients POST body to url on connections
// that they keep. Each goes on until an answer, or HTTP/2, ends its connection. It returns the
// number of answers with status 200, and fails the test if any answer was cut off.
func EndHTTP(t *testing.T, end func(), url, body string) int {
	t.Helper()
	var answered, ok atomic.Int64
	end = sync.OnceFunc(end)
	client := func() error {
		reused, kept, transport := false, false, &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused },
			// A busy client may give its connection up itself: net/http waits 50 ms for its own writer.
			PutIdleConn: func(err error) { kept = err == nil },
		})
		http2 := strings.HasPrefix(url, "https:") // PutIdleConn is not called then
		for first := true; ; first = false {
			idle := kept || http2 && !first
			reused, kept = false, false
			r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
			if err != nil {
				return err
			}
			r.Header.Set("Content-Type", "application/json")
			answer, err := (&http.Client{Transport: transport}).Do(r)
			if err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			if err == nil && answer.StatusCode == http.StatusOK {
				ok.Add(1)
			}
			if err == nil && answered.Add(1) == 300 {
				end()
			}
			switch ended := idle && !reused; {
			case ended && http2:
				return nil
			case ended:
				return errors.New("the connection ended between two requests")
			case err != nil || answer.Close:
				return err
			}
		}
	}
	var running sync.WaitGroup
	for range 32 {
		running.Go(func() {
			if err := client(); err != nil {
				t.Errorf("after %d answers: %v", answered.Load(), err)
			}
		})
	}
	running.Wait()
	end() // also if all clients failed before
	return int(ok.Load())
}

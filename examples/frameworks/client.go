package frameworks

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Client creates orders on a server that limits it. Its zero value is ready.
type Client struct {
	HTTP http.Client // reuses its connections, if bodies are read to their end
	wait func(context.Context, time.Duration) error
}

// tries is how often an order is sent at most.
const tries = 4

// Create creates an order. A request that was denied, or whose answer is lost, is sent again. The
// same Idempotency-Key each time makes the server create and count the order once.
func (c *Client) Create(ctx context.Context, url, apiKey, idempotencyKey string) (order string, err error) {
	for n := 1; ; n++ {
		pause := time.Duration(0)
		if order, pause, err = c.send(ctx, url, apiKey, idempotencyKey); err == nil || pause < 0 || n == tries {
			return order, err
		}
		wait := c.wait
		if wait == nil {
			wait = sleep
		}
		if err := wait(ctx, pause); err != nil {
			return "", err
		}
	}
}

// send sends the order once. After an error, retry is the time until it can be sent again: what
// Retry-After says, or a second; -1 if that cannot help.
func (c *Client) send(ctx context.Context, url, apiKey, idempotencyKey string) (order string, retry time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return "", -1, err
	}
	r.Header.Set("X-Api-Key", apiKey)
	r.Header.Set("Idempotency-Key", idempotencyKey)
	res, err := c.HTTP.Do(r)
	if err != nil {
		return "", time.Second, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return "", time.Second, err
	case res.StatusCode == http.StatusOK:
		return string(body), 0, nil
	}
	retry = -1
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		retry = time.Duration(s) * time.Second
	} else if res.StatusCode == http.StatusServiceUnavailable {
		retry = time.Second
	}
	return "", retry, fmt.Errorf("the server answered %s", res.Status)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// proxy is a toxiproxy between clients and a server. The connections that it closes are
// reset.
type proxy struct {
	*testing.T
	inner *toxiproxy.Proxy
}

// toxic is a fault of the connections in one direction: downstream is from the server.
// The attributes are those of toxiproxy's documentation.
type toxic struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Stream     string         `json:"stream"`
	Toxicity   float64        `json:"toxicity"` // the share of connections
	Attributes map[string]int `json:"attributes"`
}

const (
	upstream   = "upstream"
	downstream = "downstream"
)

// newProxy starts a proxy to the server at address, which must listen on TCP.
func newProxy(t *testing.T, address string) *proxy {
	t.Helper()
	server := must.OK(url.Parse(address))(t)
	zerolog.SetGlobalLevel(zerolog.Disabled) // some toxics log to stderr
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxy{T: t, inner: toxiproxy.NewProxy(api, "network", "127.0.0.1:0", server.Host)}
	must.Succeed(t, p.inner.Start())
	t.Cleanup(p.inner.Stop)
	// toxiproxy sets linger to 0 on connections that begin while there is a reset_peer,
	// even one that no connection runs. Without that, it closes them in order.
	p.add(toxic{Name: "linger", Type: "reset_peer", Stream: upstream})
	return p
}

// through returns address with the proxy in place of its server.
func (p *proxy) through(address string) string { return testworld.Through(p, address, p.inner.Listen) }

// add puts toxics into all connections, and later ones.
func (p *proxy) add(toxics ...toxic) {
	p.Helper()
	for _, x := range toxics {
		x.Name = x.name()
		text, err := json.Marshal(x)
		if err != nil {
			p.Fatal(err)
		}
		p.change(func() error {
			_, err := p.inner.Toxics.AddToxicJson(bytes.NewReader(text))
			return err
		})
	}
}

// remove ends toxics, the last one first: what one has closed has to reach those behind it
// while they are there.
func (p *proxy) remove(toxics ...toxic) {
	p.Helper()
	for _, x := range slices.Backward(toxics) {
		p.change(func() error { return p.inner.Toxics.RemoveToxic(context.Background(), x.name()) })
	}
}

func (x toxic) name() string {
	if x.Name != "" {
		return x.Name
	}
	return x.Type + " " + x.Stream
}

// change runs f and fails the test if it hangs: toxiproxy waits for its connections there.
func (p *proxy) change(f func() error) {
	p.Helper()
	changed := make(chan error, 1)
	go func() { changed <- f() }()
	select {
	case err := <-changed:
		if err != nil {
			p.Fatal(err)
		}
	case <-time.After(time.Minute):
		stacks := make([]byte, 4<<20)
		p.Fatalf("toxiproxy hangs:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

// with lets toxics last for d, or until ctx ends.
func (p *proxy) with(ctx context.Context, d time.Duration, toxics ...toxic) {
	p.Helper()
	p.add(toxics...)
	rest(ctx, d)
	p.remove(toxics...)
}

// rest is how long a fault lasts, or ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

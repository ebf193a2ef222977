package ratelimit

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
)

const (
	lookEvery   = time.Second // at files
	drainFor    = 10 * time.Second
	httpTimeout = 30 * time.Second
	// workers are goroutines that answer one request after the other: a new one would have to
	// grow its stack first. Further requests have a goroutine each.
	workers = 128
	// ahead is what a client may send before it is read, in bytes. If it were not fixed, each
	// request would come with a ping, to measure the connection.
	ahead = 1 << 20
	// maxHeader bounds the headers of a call, in bytes.
	maxHeader = 16 << 10
)

// Run answers as the program ratelimit does until ctx ends, which is not an error, or a listener
// fails. It serves gRPC, HTTP with /json and /healthcheck, an address for debugging and, if
// wanted, one for Prometheus.
//
// open returns the limiter. It calls waits if the database is away, and returns once it is there or
// ctx ends. Until then health checks fail, and requests have no decision.
func Run(ctx context.Context, e Env, open func(ctx context.Context, waits func()) (Limiter, error), logger *slog.Logger) (err error) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	ended := make(chan error, 5) // one for each listener, and that of open
	start := func(network, address string, serve func(net.Listener) error) {
		listener, failed := net.Listen(network, address)
		if failed != nil {
			err = errors.Join(err, failed)
			return
		}
		logger.Info("listening", "address", listener.Addr().String())
		running.Go(func() { ended <- serve(listener) })
	}

	s, follow, err := New(e, nil, Options{NeedConfig: e.NeedConfig, Logger: logger})
	if err != nil {
		return err
	}
	tried, goOn := context.WithCancel(ctx)
	running.Go(func() {
		defer goOn()
		if l, err := open(ctx, goOn); err == nil {
			s.SetLimiter(l)
		} else if ctx.Err() == nil {
			ended <- err
		}
	})
	<-tried.Done()
	select {
	case err = <-ended:
		return err
	default:
	}
	running.Go(func() { follow(ctx) })
	if !e.ForceStart {
		select {
		case <-s.first:
		case <-ctx.Done():
			return nil
		}
	}
	g, err := s.grpcServer(e)
	if err != nil {
		return err
	}
	if e.GRPCSocket != "" {
		start("unix", e.GRPCSocket, g.Serve)
	} else {
		start("tcp", hostPort(e.GRPCHost, e.GRPCPort), g.Serve)
	}
	var sites []*webpage.Graceful
	listen := func(address string, handlers map[string]http.Handler) {
		mux := http.NewServeMux()
		for pattern, h := range handlers {
			mux.Handle(pattern, h)
		}
		server := webpage.NewGraceful(&http.Server{Handler: mux, ReadTimeout: httpTimeout, WriteTimeout: 2 * httpTimeout, IdleTimeout: 4 * httpTimeout})
		sites = append(sites, server)
		start("tcp", address, server.Serve)
	}
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_ = s.WriteMetrics(w) // the client has left if it fails
	})
	listen(hostPort(e.Host, e.Port), map[string]http.Handler{"/json": s.JSON(), "/healthcheck": s.Healthcheck()})
	listen(hostPort(e.DebugHost, e.DebugPort), map[string]http.Handler{
		"/stats": metrics, "/debug/pprof/": http.HandlerFunc(pprof.Index), "/debug/pprof/profile": http.HandlerFunc(pprof.Profile), "/debug/pprof/trace": http.HandlerFunc(pprof.Trace),
		"/rlconfig": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if c := s.Config(); c != nil {
				_, _ = io.WriteString(w, c.Dump())
			}
		}),
	})
	if e.Prometheus {
		listen(e.PrometheusAddr, map[string]http.Handler{e.PrometheusPath: metrics})
	}
	if err == nil {
		select {
		case err = <-ended:
		case <-ctx.Done():
		}
	}
	s.Drain()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainFor)
	defer cancel()
	var ending sync.WaitGroup
	for _, server := range sites {
		ending.Go(func() { _ = server.Shutdown(last, drainFor/2) }) // what is left is closed with the process
	}
	force := context.AfterFunc(last, g.Stop)
	g.GracefulStop()
	force()
	ending.Wait()
	return err
}

// New returns a Server as the environment sets it up, with the other options, and what follows
// its configuration until its context ends.
func New(e Env, l Limiter, o Options) (*Server, func(context.Context), error) {
	o.CountEach, o.Shadow, o.Quota, o.Metadata, o.NearLimit = e.CountEach, e.Shadow, e.Quota, e.Metadata, e.NearLimit
	if e.Headers {
		o.Headers = &Headers{e.LimitHeader, e.RemainingHeader, e.ResetHeader}
	}
	s := NewServer(l, nil, o)
	follow, err := s.source(e)
	return s, follow, err
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// source returns what follows the configuration until its context ends.
func (s *Server) source(e Env) (func(context.Context), error) {
	if e.ConfigType == "FILE" {
		f := e.Files()
		return func(ctx context.Context) {
			ticker := time.NewTicker(lookEvery)
			defer ticker.Stop()
			s.Follow(ctx, f, ticker.C)
		}, nil
	}
	secure := insecure.NewCredentials()
	if e.XDSTLS {
		c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: e.XDSSAN}
		if e.XDSCA != "" {
			pool, err := authorities("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", e.XDSCA)
			if err != nil {
				return nil, err
			}
			c.RootCAs = pool
		}
		if e.XDSCert != "" {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(e.XDSCert, e.XDSKey)
				return &pair, err
			}
		}
		secure = credentials.NewTLS(c)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(secure), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 5 * time.Minute, Timeout: 20 * time.Second})}
	if e.MaxMessage > 0 {
		options = append(options, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(e.MaxMessage))))
	}
	conn, err := grpc.NewClient(e.XDSURL, options...)
	if err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_SERVER_URL is %.80q: %w", e.XDSURL, err)
	}
	node := &core.Node{Id: e.NodeID, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{}}}
	data, _ := pairs(e.NodeData)
	for name, value := range data {
		node.Metadata.Fields[name] = structpb.NewStringValue(value)
	}
	headers, _ := pairs(e.XDSHeaders)
	return func(ctx context.Context) {
		defer conn.Close()
		s.FollowXDS(ctx, XDS{Conn: conn, Node: node, Headers: headers, Merge: e.MergeDomains, FirstWait: e.FirstWait, LongestWait: e.LongestWait})
	}, nil
}

// grpcServer returns a server with the service, health and reflection.
func (s *Server) grpcServer(e Env) (*grpc.Server, error) {
	options := []grpc.ServerOption{
		grpc.MaxHeaderListSize(maxHeader), grpc.NumStreamWorkers(workers), grpc.StaticStreamWindowSize(ahead), grpc.StaticConnWindowSize(ahead),
		grpc.MaxRecvMsgSize(maxBody), grpc.MaxConcurrentStreams(1000), grpc.ConnectionTimeout(httpTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: e.MaxAge, MaxConnectionAgeGrace: e.MaxAgeGrace, Time: time.Minute}),
	}
	options = append(options, grpc.ChainStreamInterceptor(FewProbes(func(context.Context) bool { return false })))
	if e.TLS {
		if _, err := e.identity(); err != nil {
			return nil, err
		}
		var last *tls.Config
		var mu sync.Mutex
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12,
			// Connections are few and last, so that each can look at the files.
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				now, err := e.identity()
				mu.Lock()
				defer mu.Unlock()
				if last = cmp.Or(now, last); err != nil {
					s.options.Logger.Error("the TLS files are not valid; the last ones stay in use", "error", err)
				}
				return last, nil
			}})))
	}
	g := grpc.NewServer(options...)
	s.Register(g)
	healthpb.RegisterHealthServer(g, s.health)
	reflection.Register(g)
	return g, nil
}

// identity returns what the TLS files of the server have now.
func (e *Env) identity() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(e.Cert, e.Key)
	if err != nil {
		return nil, fmt.Errorf("GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}}
	if e.ClientCA == "" {
		return c, nil
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	if c.ClientCAs, err = authorities("GRPC_CLIENT_TLS_CACERT", e.ClientCA); err != nil {
		return nil, err
	}
	if e.ClientSAN != "" {
		c.VerifyConnection = func(state tls.ConnectionState) error { return state.PeerCertificates[0].VerifyHostname(e.ClientSAN) }
	}
	return c, nil
}

// authorities reads a file with certificates.
func authorities(name, path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: %s has no certificate in the form of PEM", name, path)
	}
	return pool, nil
}

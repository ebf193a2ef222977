package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// GRPC is a Conn to Envoy's rate limit service.
type GRPC struct {
	net.Conn
	out           *bufio.Writer
	frames        *http2.Framer
	stream        uint32
	head, again   []byte // of the first request, and of all others
	message       []byte
	domain, entry string
}

// DialGRPC connects to a server. It requests units of a domain's descriptor with one entry,
// whose value is the key.
func DialGRPC(address, domain, entry string) (*GRPC, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	g := &GRPC{Conn: c, out: bufio.NewWriter(c), stream: 1, domain: domain, entry: entry}
	g.frames = http2.NewFramer(g.out, bufio.NewReader(c))
	g.frames.SetReuseFrames()
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, to := range []*[]byte{&g.head, &g.again} {
		head.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
			{":authority", "localhost"}, {"content-type", "application/grpc"}, {"te", "trailers"},
		} {
			_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // to memory
		}
		*to = bytes.Clone(head.Bytes())
	}
	const window = 1 << 30 // more than all answers
	_, err = g.out.WriteString(http2.ClientPreface)
	return g, errors.Join(err, g.frames.WriteSettings(), g.frames.WriteWindowUpdate(0, window))
}

// Allow makes a request.
func (g *GRPC) Allow(key string) (bool, error) {
	descriptor := field(nil, 1, field(field(nil, 1, g.entry), 2, key))
	g.message = field(field(append(g.message[:0], 0, 0, 0, 0, 0), 1, g.domain), 2, descriptor)
	binary.BigEndian.PutUint32(g.message[1:], uint32(len(g.message)-prefix))
	err := g.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: g.stream, BlockFragment: g.head, EndHeaders: true})
	err = errors.Join(err, g.frames.WriteData(g.stream, true, g.message), g.out.Flush())
	if err != nil {
		return false, err
	}
	code, err := g.read()
	g.head, g.stream = g.again, g.stream+2
	return code == ok, err
}

const (
	prefix   = 5 // bytes before a message
	ok, over = 1, 2
)

// field appends a field of a message. Its value has less than 128 bytes.
func field[T string | []byte](to []byte, number byte, value T) []byte {
	return append(append(to, number<<3|2, byte(len(value))), value...)
}

// read returns the overall code of an answer, which is its message's first field.
func (g *GRPC) read() (code byte, err error) {
	for {
		frame, err := g.frames.ReadFrame()
		if err != nil {
			return 0, err
		}
		ended := false
		switch f := frame.(type) {
		case *http2.DataFrame:
			if d := f.Data(); len(d) >= prefix+2 && d[prefix] == 1<<3 {
				code = d[prefix+1]
			}
			ended = f.StreamEnded()
		case *http2.HeadersFrame:
			ended = f.StreamEnded()
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = errors.Join(g.frames.WriteSettingsAck(), g.out.Flush())
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = errors.Join(g.frames.WritePing(true, f.Data), g.out.Flush())
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			err = fmt.Errorf("the server ended the request: %v", f)
		}
		switch {
		case err != nil:
			return 0, err
		case ended && code != ok && code != over:
			return 0, errors.New("the server answered with an error instead of a decision")
		case ended:
			return code, nil
		}
	}
}

// Package wire has clients that cost next to nothing, so that a benchmark on one machine measures
// servers and not itself. Each is one connection with one request in flight.
package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Conn asks a server for one unit of a key.
type Conn interface {
	Allow(key string) (bool, error)
	Close() error
}

// HTTP is a Conn to the routes of `pglimit serve`.
type HTTP struct {
	net.Conn
	in         *bufio.Reader
	body, text []byte
	policy     string
}

// DialHTTP connects to a server. It requests units of a policy.
func DialHTTP(address, policy string) (*HTTP, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &HTTP{Conn: c, in: bufio.NewReader(c), policy: policy}, nil
}

// Allow makes a request. key is not escaped.
func (h *HTTP) Allow(key string) (bool, error) {
	h.body = append(h.body[:0], `{"policy":"`...)
	h.body = append(append(append(h.body, h.policy...), `","key":"`...), key...)
	h.body = append(h.body, `"}`...)
	h.text = append(h.text[:0], "POST /v1/allow HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "...)
	h.text = strconv.AppendInt(h.text, int64(len(h.body)), 10)
	h.text = append(append(h.text, "\r\n\r\n"...), h.body...)
	if _, err := h.Write(h.text); err != nil {
		return false, err
	}
	body, err := h.read()
	switch {
	case err != nil:
		return false, err
	case bytes.Contains(body, []byte(`"allowed":true`)):
		return true, nil
	case bytes.Contains(body, []byte(`"allowed":false`)):
		return false, nil
	}
	return false, fmt.Errorf("the answer is no decision: %.200q", body)
}

// read returns the body of an answer. It is valid until the next.
func (h *HTTP) read() ([]byte, error) {
	status, length := "", -1
	for {
		line, err := h.in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if value, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return nil, err
			}
		}
		if status == "" {
			status = string(line)
		} else if len(line) == 0 {
			break
		}
	}
	if length < 0 {
		return nil, errors.New("the answer has no Content-Length")
	}
	body, err := h.in.Peek(length)
	if err != nil {
		return nil, err
	}
	if status != "HTTP/1.1 200 OK" {
		return nil, fmt.Errorf("%s: %s", status, body)
	}
	_, err = h.in.Discard(length) // leaves the bytes where they are
	return body, err
}

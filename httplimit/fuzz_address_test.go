package httplimit

import (
	"bytes"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// FuzzNode: every way of writing an address is read as that address, and what is read of
// any text is an address that is in it.
func FuzzNode(f *testing.F) {
	for _, text := range []string{"", "unknown", "_hidden", "192.0.2.7", `"[2001:db8::1]:4711"`, "[192.0.2.7]", "[::1", "::1]", "2001:db8::1", "fe80::1%eth0", "[fe80::1%25eth0]:1", "192.0.2.7:", "192.0.2.7:port", `"`, `""`, "[]:1", "[::1]x", "[::1]80", "1.2.3.4.5", "010.0.0.1", "::ffff:192.0.2.7"} {
		f.Add([]byte{192, 0, 2, 7}, uint16(4711), text)
		f.Add([]byte("\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"), uint16(0), text)
	}
	f.Fuzz(func(t *testing.T, raw []byte, port uint16, text string) {
		if addr, ok := netip.AddrFromSlice(raw); ok {
			want := addr.Unmap()
			withPort := netip.AddrPortFrom(addr, port).String()
			forms := []string{addr.String(), withPort, `"` + withPort + `"`, `"` + addr.String() + `"`, addr.StringExpanded()}
			if addr.Is6() {
				forms = append(forms, "["+addr.String()+"]", `"[`+addr.String()+`]"`, "["+addr.WithZone("eth0").String()+"]:80", `"[`+addr.WithZone("enp0s31f6").StringExpanded()+`]:65535"`, addr.WithZone("0").String())
			}
			for _, form := range forms {
				if got, ok := parseNode(form); !ok || got != want {
					t.Errorf("%s is read as %v, %v, want %v", form, got, ok, want)
				}
			}
		}
		got, ok := parseNode(text)
		if !ok {
			return
		}
		if got.Zone() != "" || got.Is4In6() {
			t.Errorf("%q is read as %v, which another address equals", text, got)
		}
		// Independently: without quotes, brackets and port, it is that address.
		bare := strings.Trim(text, `"`)
		if after, found := strings.CutPrefix(bare, "["); found {
			var port string
			if bare, port, _ = strings.Cut(after, "]"); !strings.Contains(bare, ":") || port != "" && port[0] != ':' {
				t.Errorf("%q is read as %v: brackets are for IPv6, and a port follows them", text, got)
			}
		} else if host, _, found := strings.Cut(bare, ":"); found && strings.Count(bare, ":") == 1 {
			bare = host
		}
		if want, err := netip.ParseAddr(bare); err != nil || want.Unmap().WithZone("") != got {
			t.Errorf("%q is read as %v, want %v, %v", text, got, want, err)
		}
	})
}

// FuzzHops: of a chain of proxies, each of which appends the address that it saw, the n-th
// entry from the right is the client with n hops, however the proxies spread and write the
// entries.
func FuzzHops(f *testing.F) {
	f.Add("198.51.100.1", []byte{1, 2, 3, 4}, []byte{0, 1, 2, 3})
	f.Add(`for="`, []byte{9, 0}, []byte{3, 7})
	f.Add("a,b\x00", []byte{255}, []byte{1})
	f.Add("", []byte{}, []byte{})
	f.Add("for=198.51.100.1", bytes.Repeat([]byte{7, 8, 9, 10}, maxEntries/4), []byte{0, 1, 2, 3})
	f.Fuzz(func(t *testing.T, sent string, chain, how []byte) {
		chain = chain[:min(len(chain), maxEntries)]
		for _, name := range []string{"X-Forwarded-For", "Forwarded"} {
			lines := []string{sent}
			for i, last := range chain {
				style := byte(i)
				if len(how) > 0 {
					style = how[i%len(how)]
				}
				entry := netip.AddrFrom4([4]byte{192, 0, 2, last}).String()
				switch {
				case style&2 > 0 && name == "Forwarded":
					entry = `for="` + entry + `:80";by="_a,b\"c";proto=https`
				case name == "Forwarded":
					entry = "proto=http; For=" + entry
				case style&2 > 0:
					entry += ":80"
				}
				if style&1 > 0 && i > 0 { // the client's line stays apart: what it opens, a proxy would not continue
					lines[len(lines)-1] += " ,\t" + entry
				} else {
					lines = append(lines, entry)
				}
			}
			r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{name: lines}}
			for n := 1; n <= len(chain); n++ {
				want := netip.AddrFrom4([4]byte{192, 0, 2, chain[len(chain)-n]}).String()
				if got, err := (Address{Hops: n, Header: name}).Key(r); got != want || err != nil {
					t.Errorf("%d hops of %q: %q, %v, want %s", n, r.Header, got, err, want)
				}
			}
		}
	})
}

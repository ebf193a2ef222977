// Package transcript checks that the curl output in an example's README is correct.
package transcript

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
)

// TB has the methods of testing.TB that Check uses.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// prompt begins a line with a request; address is the README's address of the server.
const (
	prompt  = "$ curl -i "
	address = "http://localhost:8080"
)

var argument = regexp.MustCompile(`'[^']*'|\S+`)

// Check sends the requests of a README to base, in order, and compares the answers with
// the README. Requests are lines "$ curl -i …" in fenced blocks; curl's -X, -u and -H
// are supported. The text after each is the answer: status, header fields sorted by
// name without Date and Content-Length, and body.
func Check(t TB, readme, base string) {
	t.Helper()
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatalf("%v", err)
	}
	sent := 0
	for i, block := range strings.Split(string(text), "```") {
		for _, shown := range strings.Split(block, prompt)[1:] {
			if i%2 == 0 {
				continue
			}
			args, want, _ := strings.Cut(shown, "\n")
			got, err := send(argument.FindAllString(args, -1), base)
			if err != nil {
				t.Fatalf("curl -i %s: %v", args, err)
			}
			if got = strings.TrimSpace(got); got != strings.TrimSpace(want) {
				t.Errorf("curl -i %s: the README shows\n%s\nbut the answer is\n%s", args, want, got)
			}
			sent++
		}
	}
	if sent == 0 {
		t.Errorf("%s shows no %q", readme, prompt)
	}
}

func send(args []string, base string) (answer string, err error) {
	r, err := http.NewRequest("GET", base, nil)
	for i := 0; err == nil && i < len(args); i++ {
		flag := args[i]
		if !strings.HasPrefix(flag, "-") {
			path, found := strings.CutPrefix(flag, address)
			if !found {
				return "", fmt.Errorf("%s is not below %s", flag, address)
			}
			r.URL, err = r.URL.Parse(path)
			continue
		}
		i++
		if i == len(args) {
			return "", fmt.Errorf("%s needs a value", flag)
		}
		first, second, _ := strings.Cut(strings.Trim(args[i], "'"), ":")
		switch flag {
		case "-X":
			r.Method = first
		case "-u":
			r.SetBasicAuth(first, second)
		case "-H":
			r.Header.Add(first, strings.TrimSpace(second))
		default:
			return "", fmt.Errorf("%s is not supported", flag)
		}
	}
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	lines := []string{res.Proto + " " + res.Status}
	for _, name := range slices.Sorted(maps.Keys(res.Header)) {
		for _, value := range res.Header[name] {
			if name != "Date" && name != "Content-Length" {
				lines = append(lines, name+": "+value)
			}
		}
	}
	return strings.Join(append(lines, "", string(body)), "\n"), err
}

package main

import (
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var argument = regexp.MustCompile(`'[^']*'|\S+`)

// checkREADME sends the requests that README.md shows to base, in order, and compares the
// answers: status, header fields sorted by name without Date and Content-Length, and body.
func checkREADME(t *testing.T, base string) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for block := range strings.SplitSeq(string(text), "```") {
		for _, shown := range strings.Split(block, "$ curl -i ")[1:] {
			args, want, _ := strings.Cut(shown, "\n")
			if got := send(t, base, argument.FindAllString(args, -1)); got != strings.TrimSpace(want) {
				t.Errorf("curl -i %s: the README shows\n%s\nbut the answer is\n%s", args, want, got)
			}
			sent++
		}
	}
	if sent == 0 {
		t.Error("README.md shows no request")
	}
}

// send sends a request like curl -i, of whose flags it knows -X, -u and -H.
func send(t *testing.T, base string, args []string) string {
	t.Helper()
	r, err := http.NewRequest("GET", base, nil)
	for i := 0; err == nil && i < len(args); i++ {
		if path, found := strings.CutPrefix(args[i], "http://localhost:8080"); found {
			r.URL, err = r.URL.Parse(path)
			continue
		}
		flag := args[i]
		i++
		first, second, _ := strings.Cut(strings.Trim(args[i], "'"), ":")
		switch flag {
		case "-X":
			r.Method = first
		case "-u":
			r.SetBasicAuth(first, second)
		case "-H":
			r.Header.Add(first, strings.TrimSpace(second))
		default:
			t.Fatalf("%s is not supported", flag)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{res.Proto + " " + res.Status}
	for _, name := range slices.Sorted(maps.Keys(res.Header)) {
		for _, value := range res.Header[name] {
			if name != "Date" && name != "Content-Length" {
				lines = append(lines, name+": "+value)
			}
		}
	}
	return strings.TrimSpace(strings.Join(append(lines, "", string(body)), "\n"))
}

package browser

import (
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
)

// watch collects the page's complaints: errors and warnings in the console, exceptions,
// violations of its policy (which are in the console), and requests that fail or go to
// other hosts. It also counts the requests to the server.
type watch struct {
	origin string

	mu         sync.Mutex
	complaints []string
	tolerated  []string
	requests   map[string]int // by method and path
}

// see handles each event of a tab, for chromedp.
func (w *watch) see(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		w.complain("exception: %s", text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning || e.Type == runtime.ConsoleAPICalledTypeAssert {
			var text []string
			for _, arg := range e.Args {
				text = append(text, string(arg.Value)+arg.Description)
			}
			w.complain("console.%s: %s", e.Type, strings.Join(text, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			w.complain("%s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		w.request(e.Request.Method, e.Request.URL)
	case *network.EventLoadingFailed:
		if !e.Canceled {
			w.complain("a %s could not be loaded: %s %s", e.Type, e.ErrorText, e.BlockedReason)
		}
	}
}

func (w *watch) request(method, address string) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "data" && u.Scheme != "blob" && u.Scheme+"://"+u.Host != w.origin {
		w.complain("a request to elsewhere: %s %s", method, address)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests[method+" "+u.Path]++
}

func (w *watch) complain(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complaints = append(w.complaints, fmt.Sprintf(format, args...))
}

// left returns the complaints that are not tolerated.
func (w *watch) left() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []string
next:
	for _, c := range w.complaints {
		for _, part := range w.tolerated {
			if strings.Contains(c, part) {
				continue next
			}
		}
		left = append(left, c)
	}
	return left
}

package httpapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// appendResult appends a Result as the library writes it, after the policy's name and the time
// of the decision, which that form leaves out.
func appendResult(to []byte, r limiter.Result) ([]byte, error) {
	name, err := json.Marshal(r.Policy.Name)
	if err != nil {
		return nil, err
	}
	body, err := r.MarshalJSON()
	if err != nil {
		return nil, err
	}
	to = append(append(to, `{"policy":`...), name...)
	if !r.At.IsZero() {
		to = append(to, `,"at":"`...)
		to = append(r.At.UTC().AppendFormat(to, time.RFC3339Nano), '"')
	}
	to = append(to, ',')
	return append(to, body[1:]...), nil // without its brace
}

// writeResult answers with a Result. A denial is an answer, so its status is 200 too.
func writeResult(w http.ResponseWriter, r limiter.Result) error {
	body, err := appendResult(make([]byte, 0, 512), r)
	if err != nil {
		return err
	}
	httplimit.SetHeader(w.Header(), r)
	writeJSON(w, body)
	return nil
}

// appendResults returns the JSON of Results or an Any, of which all has no PerRequest.
func appendResults(all any, perRequest []limiter.Result) (to []byte, err error) {
	head, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	const end = `]}`
	to = append(to, head[:len(head)-len(end)]...)
	for i, r := range perRequest {
		if i > 0 {
			to = append(to, ',')
		}
		if to, err = appendResult(to, r); err != nil {
			return nil, err
		}
	}
	return append(to, end...), nil
}

// embed returns the JSON of an object with a Result as its field "result".
func embed(object []byte, r limiter.Result) ([]byte, error) {
	body, err := appendResult([]byte(`{"result":`), r)
	if err != nil {
		return nil, err
	}
	body = append(body, ',')
	return append(body, object[1:]...), nil
}

// write answers with any value.
func write(w http.ResponseWriter, value any) error {
	body, err := json.Marshal(value)
	if err == nil {
		writeJSON(w, body)
	}
	return err
}

func writeJSON(w http.ResponseWriter, body []byte) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = jsonType, noStore
	_, _ = w.Write(append(body, '\n')) // a client that has gone needs no answer
}

// Values of header fields, which nothing changes.
var (
	jsonType = []string{"application/json"}
	noStore  = []string{"no-store"}
)

// done answers a change without more to say.
func done(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

package httpapi

import (
	"reflect"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
)

// FuzzPlain: a body that plain reads is valid, and is the same to encoding/json.
func FuzzPlain(f *testing.F) {
	for text, usual := range map[string]bool{
		`{"policy":"login","key":"alice"}`: true,
		" {\n\t\"policy\" : \"login\", \"cost\": 12 , \"key\":\"é:ü\",\"idempotency_key\":\"7\"}\r\n": true,
		`{"cost":0}`: true, `{"key":""}`: true, `{"key":"","key":"b"}`: false, `{"cost":999999999999999}`: true,
		`{}`: false, `{"cost":01}`: false, `{"cost":-1}`: false, `{"cost":1.5}`: false, `{"cost":1e3}`: false, `{"cost":}`: false, `{"cost":null}`: false,
		`{"cost":9999999999999999}`: false, `{"cost":1,"cost":2}`: false, `{"key":"a","key":"b"}`: false, `{"Key":"a"}`: false, `{"key":"a\u0062"}`: false,
		"{\"key\":\"\xff\"}": false, "{\"key\":\"\n\"}": false, `{"key":"a"}{}`: false, `{"key":"a",}`: false, `{"key":"a"`: false, `{"key":"a`: false,
		`{"key":1}`: false, `{"limit":1}`: false, `["key"]`: false, `{"key":"a" "cost":1}`: false, ``: false, `{"key`: false, `{"":"a"}`: false, `"key":"a"}`: false,
	} {
		f.Add(text)
		if _, ok := plain(text); ok != usual {
			f.Errorf("%q: plain is %t, want %t", text, ok, usual)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		var want request
		in, ok := plain(text)
		if !ok {
			return
		}
		if err := api.Decode([]byte(text), &want); err != nil || !reflect.DeepEqual(in, want) {
			t.Errorf("%q: %+v, want %+v, error %v", text, in, want, err)
		}
	})
}

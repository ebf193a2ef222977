package httpapi

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"

	"go.yaml.in/yaml/v3"
)

//go:embed openapi.yaml
var description []byte

// Document returns the OpenAPI document of the routes, as JSON.
func Document() ([]byte, error) {
	var all map[string]any
	if err := yaml.Unmarshal(description, &all); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	return json.Marshal(all)
}

func (h *Handler) document(w http.ResponseWriter, _ *http.Request) error {
	w.Header()["Content-Type"] = jsonType
	_, _ = w.Write(h.openapi)
	return nil
}

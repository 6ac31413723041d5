package control_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/fastrelay/fastrelay-gen/gen/glue"
	"github.com/fastrelay/fastrelay-gen/internal/build"
	"github.com/fastrelay/fastrelay-gen/runtime/control/api"
)

// The document of every golden spec and of the examples is valid OpenAPI, and always the same.
func TestOpenAPI(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../../golden/*/spec.cue", "../../../examples/*/spec.cue"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 30 {
		t.Fatalf("only %d specs", len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			built, list, err := build.Plan(t.Context(), file)
			if err != nil || built == nil {
				t.Fatalf("%v %v", err, list)
			}
			desc := glue.Desc(built.Plan)
			text, err := api.OpenAPI(&desc)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := openapi3.NewLoader().LoadFromData(text)
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if err := doc.Validate(t.Context()); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
			if again, err := api.OpenAPI(&desc); err != nil || !bytes.Equal(again, text) {
				t.Errorf("another document the second time: %v", err)
			}
		})
	}
}

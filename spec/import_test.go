package spec_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/fastrelay/fastrelay-gen/spec"
)

// A spec that imports the schema is the same spec, with the same places, whether the schema is embedded or unified.
func TestSchemaImport(t *testing.T) {
	text, err := os.ReadFile("../examples/turn/spec.cue")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	_, rest, _ = strings.Cut(rest, "\n") // two lines of a comment
	want, diags := spec.Load("spec.cue", []byte("//\n//\n"+rest))
	if diags.Len() > 0 {
		t.Fatal(diags.Err())
	}
	const head = "import \"" + spec.SchemaImport + "\"\n"
	for name, text := range map[string]string{
		"embedded":   head + "spec.#Spec\n" + rest,
		"at the end": head + "//\n" + rest + "\nspec.#Spec\n",
		"unified":    head + "spec.#Spec & {\n" + rest + "}\n",
		"second":     head + "{\n" + rest + "} & spec.#Spec\n",
		"parts": head + "//\n" + strings.Replace(rest, "packet: [", "packet: spec.#Packet & [", 1) +
			"\nspec.#Spec\n",
		"of a test":    head + "//\n" + strings.Replace(rest, "tests: {", "tests: spec.#Spec.tests & {", 1),
		"by its index": head + "//\n" + strings.Replace(rest, "tests: {", "tests: spec.#Spec[\"tests\"] & {", 1),
	} {
		got, diags := spec.Load("spec.cue", []byte(text))
		if diags.Len() > 0 {
			t.Errorf("%s: %v", name, diags.Err())
			continue
		}
		if strings.Contains(text, "tests: {") && !strings.Contains(text, "#Packet") && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: another spec", name)
		}
		if len(got.Tests) != len(want.Tests) || len(got.Programs) != len(want.Programs) {
			t.Errorf("%s: %d tests, %d programs", name, len(got.Tests), len(got.Programs))
		}
	}
}

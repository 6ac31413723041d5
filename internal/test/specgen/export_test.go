package specgen

import "github.com/fastrelay/fastrelay-gen/spec"

// Judge is the judge of a spec's packets.
func Judge(s *spec.Spec) func(program string, came, left []byte) string { return newJudge(s).complete }

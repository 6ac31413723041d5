package testkernel

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/fastrelay/fastrelay-gen/gen/ir"
)

var seriesPattern = regexp.MustCompile(`^(\d+)\.(\d+)`)

// ParseSeries returns the series of a kernel's release: 6.1 of "6.1.0-13-cloud-amd64".
func ParseSeries(release string) (ir.Version, error) {
	m := seriesPattern.FindStringSubmatch(release)
	if m == nil {
		return ir.Version{}, fmt.Errorf("%q is no version of a kernel", release)
	}
	major, err1 := strconv.Atoi(m[1])
	minor, err2 := strconv.Atoi(m[2])
	if err1 != nil || err2 != nil {
		return ir.Version{}, fmt.Errorf("%q is no version of a kernel", release)
	}
	return ir.Version{Major: major, Minor: minor}, nil
}

package trial

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Summary describes the values of a figure.
type Summary struct {
	N                 int
	Median, Low, High float64 // the range
	Mean, Deviation   float64 // the standard deviation of the sample
}

// Summarize describes values. Without any, all figures are NaN.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{0, math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	mean, deviation := stat.MeanStdDev(sorted, nil)
	return Summary{
		N: n, Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Low: sorted[0], High: sorted[n-1],
		Mean: mean, Deviation: deviation,
	}
}

// Greater returns the probability that values which are on average at least as much greater than others come about by
// chance: the p of a right-tailed two-sample t-test of unpaired samples, whose variances need not be equal (Welch).
// If neither varies, it is 0 or 1. It is NaN if a sample has fewer than two values.
func Greater(values, others []float64) float64 {
	a, b := Summarize(values), Summarize(others)
	if a.N < 2 || b.N < 2 {
		return math.NaN()
	}
	va, vb := a.Deviation*a.Deviation/float64(a.N), b.Deviation*b.Deviation/float64(b.N)
	switch {
	case va+vb > 0:
	case a.Mean > b.Mean:
		return 0
	default:
		return 1
	}
	degrees := (va + vb) * (va + vb) / (va*va/float64(a.N-1) + vb*vb/float64(b.N-1))
	t := (a.Mean - b.Mean) / math.Sqrt(va+vb)
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: degrees}.Survival(t)
}

// Package trial is what all experiments have in common: variants that run in turns, their results on disk as soon as
// they exist, and a table and plots of them with medians, ranges and tests.
//
//	err := book.Alternate(ctx, []string{"with", "without"},
//		func(ctx context.Context, variant string, run int) (trial.Result, error) {
//			…
//			return trial.Result{Figures: map[string]float64{"requests": 17}}, nil
//		})
//	err = book.Table(trial.Column{Figure: "requests", Unit: "1/s"})
//	err = book.Spread("requests.png", "requests", "1/s")
package trial

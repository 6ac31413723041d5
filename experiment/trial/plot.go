package trial

import (
	"errors"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// colours differ for the colour-blind, too.
var colours = []color.NRGBA{
	{0x00, 0x72, 0xB2, 0xFF}, {0xD5, 0x5E, 0x00, 0xFF}, {0x00, 0x9E, 0x73, 0xFF}, {0xE6, 0x9F, 0x00, 0xFF},
	{0xCC, 0x79, 0xA7, 0xFF}, {0x56, 0xB4, 0xE9, 0xFF}, {0x77, 0x77, 0x77, 0xFF}, {0x22, 0x22, 0x22, 0xFF},
}

// Spread draws a figure into a PNG file: a column for each variant that has it, a mark for each run, and a bar at the
// median. Without any, there is no file.
func (b *Book) Spread(file, figure, unit string) error {
	variants := b.with(figure)
	if len(variants) == 0 {
		return nil
	}
	p := newPlot(figure, "", unit)
	for i, variant := range variants {
		values := b.Values(variant, figure)
		points := make(plotter.XYs, len(values))
		for j, v := range values {
			// The marks of a column stand side by side, so that equal ones are seen.
			points[j] = plotter.XY{X: float64(i) + (float64(j+1)/float64(len(values)+1)-0.5)*0.6, Y: v}
		}
		marks, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		marks.Color, marks.Shape, marks.Radius = colour(i), draw.CircleGlyph{}, vg.Points(2.5)
		median := b.Median(variant, figure)
		bar, err := plotter.NewLine(plotter.XYs{{X: float64(i) - 0.35, Y: median}, {X: float64(i) + 0.35, Y: median}})
		if err != nil {
			return err
		}
		bar.Color, bar.Width = colour(i), vg.Points(2)
		p.Add(marks, bar)
	}
	p.NominalX(variants...)
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = 0.5, draw.XRight, draw.YCenter
	p.X.Min, p.X.Max = -0.5, float64(len(variants))-0.5
	p.Y.Min, p.Y.Max = min(p.Y.Min, 0), p.Y.Max*1.05
	return b.save(file, p, vg.Length(len(variants))*2*vg.Centimeter+5*vg.Centimeter)
}

// Lines draws the curves of that name of some variants into a PNG file: a line for each run, in the variant's colour.
// Without any, there is no file.
func (b *Book) Lines(file, curve, unit string, variants ...string) error {
	return b.lines(file, curve, unit, variants, func(variant string) (all []Curve) {
		for _, r := range b.Results {
			if r.Variant == variant {
				all = append(all, r.Curves[curve])
			}
		}
		return all
	})
}

// Averages is Lines with one line for each variant: the average of its runs.
func (b *Book) Averages(file, curve, unit string, variants ...string) error {
	return b.lines(file, curve, unit, variants, func(variant string) []Curve { return []Curve{b.Mean(variant, curve)} })
}

func (b *Book) lines(file, title, unit string, variants []string, of func(variant string) []Curve) error {
	p, empty := newPlot(title, "s", unit), true
	for i, variant := range variants {
		shown := false
		for _, curve := range of(variant) {
			points := make(plotter.XYs, len(curve))
			for j, at := range curve {
				points[j] = plotter.XY(at)
			}
			if len(points) == 0 {
				continue
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				return err
			}
			line.Color, line.Width = colour(i), vg.Points(1)
			p.Add(line)
			empty = false
			if !shown {
				p.Legend.Add(variant, line)
				shown = true
			}
		}
	}
	if empty {
		return nil
	}
	p.Y.Min, p.Y.Max = min(p.Y.Min, 0), p.Y.Max*1.35 // room for the legend
	return b.save(file, p, 16*vg.Centimeter)
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Legend.Top, p.Legend.ThumbnailWidth = true, vg.Points(14)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, color.Gray{0xE0}
	p.Add(grid)
	return p
}

func colour(i int) color.Color { return colours[i%len(colours)] }

func (b *Book) save(file string, p *plot.Plot, width vg.Length) error {
	picture := vgimg.NewWith(vgimg.UseWH(width, 9*vg.Centimeter), vgimg.UseDPI(96))
	p.Draw(draw.Crop(draw.New(picture), 6, -6, 6, -6))
	f, err := os.Create(filepath.Join(b.Dir, file))
	if err != nil {
		return err
	}
	_, err = vgimg.PngCanvas{Canvas: picture}.WriteTo(f)
	return errors.Join(err, f.Close())
}

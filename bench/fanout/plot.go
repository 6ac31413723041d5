package fanout

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"

	"github.com/fastrelay/fastrelay-gen/bench/curves"
)

// look is how a variant is drawn, the same in all plots: colours that differ for the colour-blind, too, and shapes.
var look = map[Variant]struct {
	colour color.Color
	shape  draw.GlyphDrawer
}{
	Forwarding: {color.RGBA{0x77, 0x77, 0x77, 0xFF}, draw.CrossGlyph{}},
	Bare:       {color.RGBA{0x22, 0x22, 0x22, 0xFF}, draw.SquareGlyph{}},
	Relay:      {color.RGBA{0x00, 0x72, 0xB2, 0xFF}, draw.CircleGlyph{}},
	SFU:        {color.RGBA{0x56, 0xB4, 0xE9, 0xFF}, draw.RingGlyph{}},
	Mmsg:       {color.RGBA{0xD5, 0x5E, 0x00, 0xFF}, draw.TriangleGlyph{}},
	GSO:        {color.RGBA{0xE6, 0x9F, 0x00, 0xFF}, draw.PyramidGlyph{}},
}

// panel is one plot of the picture: a figure of each variant over the number of receivers.
type panel struct {
	title  string
	unit   string
	linear bool // from 0 on, if a logarithmic range would hide that a line is flat
	points func(size int, v Variant) plotter.XYs
}

// Plot draws the curves into a PNG file: a row for each size of datagrams.
func Plot(file string, copies []Copy, cells []Cell) error {
	onPath := func(figure func(r, unit Result) float64) func(int, Variant) plotter.XYs {
		return func(size int, v Variant) (points plotter.XYs) {
			for _, c := range cells {
				if r, ok := c.Results[v]; ok && c.Size == size {
					points = append(points, plotter.XY{X: float64(c.Receivers), Y: figure(r, unitOf(cells, size))})
				}
			}
			return points
		}
	}
	panels := []panel{
		{title: "in the kernel, a copy", unit: "ns", linear: true, points: func(size int,
			v Variant) (points plotter.XYs) {
			for _, c := range copies {
				if c.Size == size && c.Times[v] > 0 {
					points = append(points, plotter.XY{X: float64(c.Receivers), Y: c.Times[v]})
				}
			}
			return points
		}},
		{
			title: "CPU, a delivered packet", unit: "ns",
			points: onPath(func(r, _ Result) float64 { return r.CPU }),
		},
		{
			title: "delivered without loss", unit: "pps",
			points: onPath(func(r, _ Result) float64 { return r.LossFree }),
		},
		{
			title: "delay, median over all copies", unit: "µs",
			points: onPath(func(r, _ Result) float64 { return r.P50 }),
		},
	}
	var sizes []int
	for _, c := range copies {
		if len(sizes) == 0 || sizes[len(sizes)-1] < c.Size {
			sizes = append(sizes, c.Size)
		}
	}
	rows := make([][]curves.Panel, len(sizes))
	for i, size := range sizes {
		for _, panel := range panels {
			p := curves.Panel{
				Title: fmt.Sprintf("%s, %d bytes", panel.title, size), X: "receivers", Unit: panel.unit,
				Linear: panel.linear,
			}
			for _, v := range Variants {
				p.Lines = append(p.Lines, curves.Line{
					Name: string(v), Colour: look[v].colour, Shape: look[v].shape, Points: panel.points(size, v),
				})
			}
			rows[i] = append(rows[i], p)
		}
	}
	return curves.Draw(file, rows)
}

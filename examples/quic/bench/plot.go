package main

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"

	"github.com/fastrelay/fastrelay-gen/bench/curves"
)

// look is how a variant is drawn: as those of the one-to-many bench.
var look = map[Variant]struct {
	colour color.Color
	shape  draw.GlyphDrawer
}{
	UserSpace: {color.RGBA{0xD5, 0x5E, 0x00, 0xFF}, draw.TriangleGlyph{}},
	Kernel:    {color.RGBA{0x00, 0x72, 0xB2, 0xFF}, draw.CircleGlyph{}},
}

// plot draws the curves into a PNG file: a row for each count of objects in a stream.
func plot(file string, cells []Cell) error {
	figures := []struct {
		title, unit string
		of          func(r Result) float64
	}{
		{"delay, median over all copies", "µs", func(r Result) float64 { return r.P50 }},
		{"system calls", "a delivery", func(r Result) float64 { return r.Calls }},
		{"CPU", "µs a delivery", func(r Result) float64 { return r.CPU }},
	}
	var rows [][]curves.Panel
	for i, c := range cells {
		if i > 0 && cells[i-1].Objects == c.Objects {
			continue
		}
		var row []curves.Panel
		shape := fmt.Sprintf("%d objects a stream", c.Objects)
		if c.Objects == 1 {
			shape = "1 object a stream"
		}
		for _, f := range figures {
			p := curves.Panel{Title: f.title + ", " + shape, X: "subscribers", Unit: f.unit}
			for _, v := range variants {
				line := curves.Line{Name: string(v), Colour: look[v].colour, Shape: look[v].shape}
				for _, cell := range cells {
					if cell.Objects == c.Objects {
						at := plotter.XY{X: float64(cell.Subscribers), Y: f.of(cell.Results[v])}
						line.Points = append(line.Points, at)
					}
				}
				p.Lines = append(p.Lines, line)
			}
			row = append(row, p)
		}
		rows = append(rows, row)
	}
	return curves.Draw(file, rows)
}

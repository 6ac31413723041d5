package main

import (
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"

	"github.com/fastrelay/fastrelay-gen/bench/curves"
)

// look is how a variant is drawn: as those of the one-to-many bench.
var look = map[Variant]struct {
	colour color.Color
	shape  draw.GlyphDrawer
}{
	UserSpace:     {color.RGBA{0xD5, 0x5E, 0x00, 0xFF}, draw.TriangleGlyph{}},
	Kernel:        {color.RGBA{0x00, 0x72, 0xB2, 0xFF}, draw.CircleGlyph{}},
	Stock:         {color.RGBA{0x56, 0xB4, 0xE9, 0xFF}, draw.RingGlyph{}},
	StockSegments: {color.RGBA{0xF0, 0xE4, 0x42, 0xFF}, draw.CrossGlyph{}},
	StockWaiting:  {color.RGBA{0x99, 0x99, 0x33, 0xFF}, draw.PlusGlyph{}},
	Quinn:         {color.RGBA{0x22, 0x22, 0x22, 0xFF}, draw.SquareGlyph{}},
	KernelThinned: {color.RGBA{0x00, 0x9E, 0x73, 0xFF}, draw.CrossGlyph{}},
	StockThinned:  {color.RGBA{0xCC, 0x79, 0xA7, 0xFF}, draw.CrossGlyph{}},
	QuinnThinned:  {color.RGBA{0x77, 0x77, 0x77, 0xFF}, draw.CrossGlyph{}},
}

// A figure is what a panel shows. 0: it wasn't measured of a variant.
type figure struct {
	title, unit string
	of          func(r Result) float64
}

// figures returns those that any variant has.
func figures(cells []Cell) (list []figure) {
	for _, f := range []figure{
		{"delay in the relay, median", "µs", func(r Result) float64 { return r.P50 }},
		{"delay until read, median", "µs", func(r Result) float64 { return r.ReadP50 }},
		{"system calls", "a delivery", func(r Result) float64 { return r.Calls }},
		{"CPU", "µs a delivery", func(r Result) float64 { return r.CPU }},
	} {
		measured := func(c Cell) bool {
			return slices.ContainsFunc(variants, func(v Variant) bool { return f.of(c.Results[v]) > 0 })
		}
		if slices.ContainsFunc(cells, measured) {
			list = append(list, f)
		}
	}
	return list
}

// plot draws the curves into a PNG file: a row for each rate, and each count of objects in a stream.
func plot(file string, cells []Cell) error {
	var rows [][]curves.Panel
	for i, c := range cells {
		like := func(other Cell) bool { return other.Objects == c.Objects && other.Rate == c.Rate }
		if i > 0 && like(cells[i-1]) {
			continue
		}
		var row []curves.Panel
		for _, f := range figures(cells) {
			p := curves.Panel{Title: f.title + ", " + c.shape(cells), X: "subscribers", Unit: f.unit}
			for _, v := range variants {
				line := curves.Line{Name: string(v), Colour: look[v].colour, Shape: look[v].shape}
				for _, cell := range cells {
					if y := f.of(cell.Results[v]); like(cell) && y > 0 {
						line.Points = append(line.Points, plotter.XY{X: float64(cell.Subscribers), Y: y})
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

// shape says what a cell's traffic is like, as far as that isn't the same in all cells.
func (c *Cell) shape(cells []Cell) string {
	rate := fmt.Sprintf("%d/s", c.Rate)
	if !slices.ContainsFunc(cells, func(other Cell) bool { return other.Objects != c.Objects }) {
		return rate
	}
	return fmt.Sprintf("%d a stream, %s", c.Objects, rate)
}

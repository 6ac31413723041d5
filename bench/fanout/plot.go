package fanout

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
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
	linear bool // from 0 on, where a logarithmic range would hide that a line is flat
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
			title: "processor, a delivered packet", unit: "ns",
			points: onPath(func(r, _ Result) float64 { return r.CPU }),
		},
		{
			title: "delivered without loss", unit: "packets a second",
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
	rows := make([][]*plot.Plot, len(sizes))
	for i, size := range sizes {
		for j, panel := range panels {
			p, err := panel.draw(size, i == 0 && j == len(panels)-1)
			if err != nil {
				return err
			}
			rows[i] = append(rows[i], p)
		}
	}
	picture := vgimg.NewWith(vgimg.UseWH(vg.Length(len(panels))*9*vg.Centimeter, vg.Length(len(rows))*8*vg.Centimeter),
		vgimg.UseDPI(96))
	canvas := draw.New(picture)
	space := vg.Points(12)
	tiles := draw.Tiles{
		Rows: len(rows), Cols: len(panels), PadX: space, PadY: space, PadTop: space, PadBottom: space, PadLeft: space,
		PadRight: space,
	}
	for i, row := range plot.Align(rows, tiles, canvas) {
		for j, c := range row {
			rows[i][j].Draw(c)
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = vgimg.PngCanvas{Canvas: picture}.WriteTo(f)
	return errors.Join(err, f.Close())
}

func (pa *panel) draw(size int, legend bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s, %d bytes", pa.title, size)
	p.X.Label.Text = "receivers"
	p.Y.Label.Text = pa.unit
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.TickerFunc(powers)
	p.Y.Tick.Marker = plot.TickerFunc(hundreds)
	if !pa.linear {
		p.Y.Scale = plot.LogScale{}
		p.Y.Tick.Marker = plot.TickerFunc(decades)
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xE0}, color.Gray{0xE0}
	p.Add(grid)
	for _, v := range Variants {
		points := pa.points(size, v)
		if len(points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = look[v].colour, vg.Points(1.5)
		marks.Color, marks.Shape, marks.Radius = look[v].colour, look[v].shape, vg.Points(3)
		p.Add(line, marks)
		if legend {
			p.Legend.Add(string(v), line, marks)
		}
	}
	p.Legend.Top, p.Legend.Left = true, true
	if pa.linear {
		p.Y.Min = 0
	} else { // no point lies on the frame
		p.Y.Min, p.Y.Max = p.Y.Min/1.5, p.Y.Max*1.5
	}
	p.X.Min, p.X.Max = min(p.X.Min, 1)/1.2, max(p.X.Max, 2)*1.2
	return p, nil
}

// powers marks 1, 8, 64, 512 and so on.
func powers(low, high float64) (ticks []plot.Tick) {
	for x := 1.0; x <= high; x *= 8 {
		if x >= low {
			ticks = append(ticks, plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'f', -1, 64)})
		}
	}
	return ticks
}

// hundreds marks 0, 100, 200 and so on.
func hundreds(low, high float64) (ticks []plot.Tick) {
	for y := math.Ceil(low/100) * 100; y <= high; y += 100 {
		ticks = append(ticks, plot.Tick{Value: y, Label: strconv.FormatFloat(y, 'f', -1, 64)})
	}
	return ticks
}

// decades marks 1, 2 and 5 of each power of ten.
func decades(low, high float64) (ticks []plot.Tick) {
	for power := math.Pow(10, math.Floor(math.Log10(low))); power <= high; power *= 10 {
		for _, x := range []float64{power, 2 * power, 5 * power} {
			if x < low || x > high {
				continue
			}
			label := strconv.FormatFloat(x, 'f', -1, 64)
			switch {
			case x >= 1e6:
				label = strconv.FormatFloat(x/1e6, 'f', -1, 64) + " M"
			case x >= 1e3:
				label = strconv.FormatFloat(x/1e3, 'f', -1, 64) + " k"
			}
			ticks = append(ticks, plot.Tick{Value: x, Label: label})
		}
	}
	return ticks
}

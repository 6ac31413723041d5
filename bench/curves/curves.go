// Package curves draws figures over the number of receivers into a picture.
package curves

import (
	"errors"
	"image/color"
	"math"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// A Panel is one plot of a picture: a figure over the number of receivers.
type Panel struct {
	Title  string
	X      string // what is counted
	Unit   string
	Linear bool   // from 0 on, if a logarithmic range would hide that a line is flat
	Lines  []Line // without points, a line is left out
}

// A Line is the figure of one variant.
type Line struct {
	Name   string
	Colour color.Color
	Shape  draw.GlyphDrawer
	Points plotter.XYs
}

// top is the strip above the panels that has the legend, where it covers nothing.
const top = 0.8 * vg.Centimeter

// Draw draws rows of panels, all of the same length, into a PNG file, with one legend for all.
func Draw(file string, panels [][]Panel) error {
	rows := make([][]*plot.Plot, len(panels))
	for i, row := range panels {
		for _, panel := range row {
			p, err := panel.plot()
			if err != nil {
				return err
			}
			rows[i] = append(rows[i], p)
		}
	}
	picture := vgimg.NewWith(
		vgimg.UseWH(vg.Length(len(panels[0]))*9*vg.Centimeter, vg.Length(len(rows))*8*vg.Centimeter+top),
		vgimg.UseDPI(96))
	whole := draw.New(picture)
	if err := legend(draw.Crop(whole, 0, 0, whole.Rectangle.Size().Y-top, 0), panels); err != nil {
		return err
	}
	canvas := draw.Crop(whole, 0, 0, 0, -top)
	space := vg.Points(12)
	tiles := draw.Tiles{
		Rows: len(rows), Cols: len(panels[0]), PadX: space, PadY: space,
		PadTop: space, PadBottom: space, PadLeft: space, PadRight: space,
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

func (pa *Panel) plot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = pa.Title
	p.X.Label.Text = pa.X
	p.Y.Label.Text = pa.Unit
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = plot.TickerFunc(powers)
	p.Y.Tick.Marker = plot.TickerFunc(hundreds)
	if !pa.Linear {
		p.Y.Scale = plot.LogScale{}
		p.Y.Tick.Marker = plot.TickerFunc(decades)
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xE0}, color.Gray{0xE0}
	p.Add(grid)
	for _, l := range pa.Lines {
		if len(l.Points) == 0 {
			continue
		}
		line, marks, err := l.plot()
		if err != nil {
			return nil, err
		}
		p.Add(line, marks)
	}
	// No point lies on the frame.
	if pa.Linear {
		p.Y.Min, p.Y.Max = 0, p.Y.Max*1.1
	} else {
		p.Y.Min, p.Y.Max = p.Y.Min/1.5, p.Y.Max*1.5
	}
	p.X.Min, p.X.Max = min(p.X.Min, 1)/1.2, max(p.X.Max, 2)*1.2
	return p, nil
}

func (l *Line) plot() (*plotter.Line, *plotter.Scatter, error) {
	line, marks, err := plotter.NewLinePoints(l.Points)
	if err != nil {
		return nil, nil, err
	}
	line.Color, line.Width = l.Colour, vg.Points(1.5)
	marks.Color, marks.Shape, marks.Radius = l.Colour, l.Shape, vg.Points(3)
	return line, marks, nil
}

// legend draws the names of all lines that a panel has, side by side.
func legend(canvas draw.Canvas, panels [][]Panel) error {
	var lines []Line
	for _, row := range panels {
		for _, panel := range row {
			for _, l := range panel.Lines {
				known := slices.ContainsFunc(lines, func(k Line) bool { return k.Name == l.Name })
				if len(l.Points) > 0 && !known {
					lines = append(lines, l)
				}
			}
		}
	}
	width := canvas.Rectangle.Size().X / vg.Length(max(len(lines), 1))
	for i, l := range lines {
		line, marks, err := l.plot()
		if err != nil {
			return err
		}
		entry := plot.NewLegend()
		entry.Top, entry.Left = true, true
		entry.Add(l.Name, line, marks)
		left := vg.Length(i) * width
		entry.Draw(draw.Crop(canvas, left+vg.Points(12), left+width-canvas.Rectangle.Size().X, 0, -vg.Points(6)))
	}
	return nil
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

package curves

import (
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"
)

func TestDraw(t *testing.T) {
	line := Line{
		Name: "relay", Colour: color.Black, Shape: draw.CircleGlyph{},
		Points: plotter.XYs{{X: 1, Y: 0.2}, {X: 8, Y: 30}},
	}
	panel := Panel{Title: "cost", X: "receivers", Unit: "ns", Lines: []Line{line, {Name: "not measured"}}}
	linear := panel
	linear.Linear = true
	file := filepath.Join(t.TempDir(), "curves.png")
	if err := Draw(file, [][]Panel{{panel, linear}, {linear, panel}}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	// The legend is above the panels: its strip has marks, and below it there is the panels' padding.
	strip := int(top.Dots(96))
	if !inked(picture, 0, strip) || inked(picture, strip, strip+8) {
		t.Error("the legend isn't in a strip of its own above the panels")
	}
}

// inked reports whether rows of a picture have anything that isn't white.
func inked(p image.Image, from, to int) bool {
	for y := from; y < to; y++ {
		for x := range p.Bounds().Dx() {
			if r, g, b, a := p.At(x, y).RGBA(); a != 0 && min(r, g, b) < 0xFFFF {
				return true
			}
		}
	}
	return false
}

func TestTicks(t *testing.T) {
	for name, c := range map[string]struct {
		got  []plot.Tick
		want []string
	}{
		"powers":   {powers(1, 100), []string{"1", "8", "64"}},
		"hundreds": {hundreds(150, 420), []string{"200", "300", "400"}},
		"decades": {decades(0.3, 3000),
			[]string{"0.5", "1", "2", "5", "10", "20", "50", "100", "200", "500", "1 k", "2 k"}},
	} {
		var got []string
		for _, t := range c.got {
			got = append(got, t.Label)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
		}
	}
}

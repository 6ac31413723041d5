package main
func draw(string, []Cell) error { return nil }

package gen

func nearest(word string, words []string) string { return "" }

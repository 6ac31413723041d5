// Package spell finds the word that was meant when another one was written.
package spell

import "slices"

// Nearest returns the word of words that is most like word, or "" if none is like enough: a third of its letters may
// be wrong, at least one. Of equals it returns the first.
func Nearest(word string, words []string) string {
	limit := max(1, len(word)/3)
	best := ""
	for _, w := range words {
		if w == word {
			continue
		}
		if d := distance(word, w, limit); d <= limit {
			best, limit = w, d-1
		}
	}
	return best
}

// distance is the number of insertions, deletions, substitutions and swaps of neighbours that turn a into b (the
// "optimal string alignment" form of Damerau-Levenshtein), or more than limit if it exceeds limit.
func distance(a, b string, limit int) int {
	if abs(len(a)-len(b)) > limit {
		return limit + 1
	}
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		if slices.Min(row) > limit {
			return limit + 1
		}
		before, last = last, row
	}
	return last[len(b)]
}

func abs(n int) int { return max(n, -n) }

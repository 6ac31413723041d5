package lsp

// What is used of the protocol's types (LSP 3.17).

type position struct {
	Line      int `json:"line"`
	Character int `json:"character"` // in the units that were agreed upon
}

type span struct {
	Start position `json:"start"`
	End   position `json:"end"`
}

type location struct {
	URI   string `json:"uri"`
	Range span   `json:"range"`
}

type identifier struct {
	URI     string `json:"uri"`
	Version *int   `json:"version,omitempty"`
}

type item struct {
	URI     string `json:"uri"`
	Version int    `json:"version"`
	Text    string `json:"text"`
}

type change struct {
	Range *span  `json:"range"`
	Text  string `json:"text"`
}

type diagnostic struct {
	Range       span      `json:"range"`
	Severity    int       `json:"severity"` // 1 error, 2 warning
	Code        string    `json:"code,omitempty"`
	Description *href     `json:"codeDescription,omitempty"`
	Source      string    `json:"source"`
	Message     string    `json:"message"`
	Related     []related `json:"relatedInformation,omitempty"`
}

type href struct {
	Href string `json:"href"`
}

type related struct {
	Location location `json:"location"`
	Message  string   `json:"message"`
}

type published struct {
	URI         string       `json:"uri"`
	Version     int          `json:"version"`
	Diagnostics []diagnostic `json:"diagnostics"`
}

type at struct {
	Document identifier `json:"textDocument"`
	Position position   `json:"position"`
}

type markup struct {
	Kind  string `json:"kind"`
	Value string `json:"value"`
}

type hover struct {
	Contents markup `json:"contents"`
	Range    *span  `json:"range,omitempty"`
}

type completion struct {
	Label         string  `json:"label"`
	Kind          int     `json:"kind"`
	Detail        string  `json:"detail,omitempty"`
	Documentation *markup `json:"documentation,omitempty"`
	InsertText    string  `json:"insertText,omitempty"`
}

// Kinds of completions.
const (
	kindField    = 5
	kindModule   = 9
	kindProperty = 10
)

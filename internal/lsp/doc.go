// Package lsp is a language server (LSP 3.17) for specs, over a stream such as standard input and output. It publishes
// the diagnostics of `vet` for each open document as it is, saved or not; shows the schema's comments and the layouts
// of fields; finds declarations; and completes words of the schema, headers and fields.
//
// The compiler runs in a process of its own for each check: a check that is out of date, since the document has
// changed, is ended with its process. CUE's evaluator can't be interrupted otherwise, and a spec that needs all memory,
// or makes it panic, mustn't take the server with it.
//
// It is a small implementation of the base protocol: the libraries for Go that could be found are no longer maintained.
package lsp

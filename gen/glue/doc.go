// Package glue turns a plan into Go: into the description that the runtime works by, and into the source of a package
// with typed settings, programs, tables and sessions. It decides nothing about packets; what it decides are names.
package glue

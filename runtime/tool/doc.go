// Package tool has no code: the packages below it are what fastrelay-gen's compiler, its tests and the runtime
// share, which are two modules. They may change with any version; a server doesn't need them.
package tool

module github.com/fastrelay/fastrelay-gen/examples/moq

go 1.26.0

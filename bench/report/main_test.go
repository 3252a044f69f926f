package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What the document says is what was measured: its tables and charts are those that
// are made of the figures beside it.
func TestDocument(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	r, err := read(filepath.Join(docs, "benchmarks.json"))
	if err != nil {
		t.Fatal(err)
	}
	committed := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	text := committed("benchmarks.md")
	want, err := fill(text, r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Errorf("the tables are not those of benchmarks.json: run make bench-report\n%s", diff)
	}
	drawn, err := drawAll(r)
	if err != nil {
		t.Fatal(err)
	}
	for name, svg := range drawn {
		if string(committed(filepath.Join("charts", name))) != string(svg) {
			t.Errorf("%s is not of benchmarks.json: run make bench-report", name)
		}
	}
}

// Command report writes what memd bench --json measured into a document: tables
// between its markers, and charts beside it.
//
//	report docs/benchmarks.json docs/benchmarks.md docs/charts
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"forgettable.dev/memd/bench"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: report MEASURED.json DOCUMENT.md CHARTS")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(measured, document, folder string) error {
	r, err := read(measured)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	if text, err = fill(text, r); err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	files := map[string][]byte{document: text}
	drawn, err := drawAll(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, svg := range drawn {
		files[filepath.Join(folder, name)] = svg
	}
	for name, content := range files {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func read(name string) (r bench.Report, err error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// Markers of a document: what is between them is written by this command.
const (
	begin = "<!-- measured: "
	end   = "<!-- end -->"
)

// fill replaces what is between the markers.
func fill(text []byte, r bench.Report) ([]byte, error) {
	var out bytes.Buffer
	for rest := text; ; {
		before, after, found := bytes.Cut(rest, []byte(begin))
		out.Write(before)
		if !found {
			return out.Bytes(), nil
		}
		name, after, ok := bytes.Cut(after, []byte(" -->\n"))
		_, after, ended := bytes.Cut(after, []byte(end))
		if !ok || !ended {
			return nil, errors.New("a marker has no end")
		}
		table, ok := tables[string(name)]
		if !ok {
			return nil, fmt.Errorf("there is no table %q", name)
		}
		fmt.Fprintf(&out, "%s%s -->\n%s%s", begin, name, table(r), end)
		rest = after
	}
}

package purge

import (
	"bytes"
	"os"
)

// mark stands where a line of JSON was, so that what reads the file as JSON goes
// on. Other lines become spaces.
const mark = `{"memd":"erased"}`

// overwrite replaces lines by others of the same length, in two steps. The first
// leaves what a line was found by and nothing else; when it is on the disk, the
// second takes that as well. Wherever a crash falls in between, each page on the
// disk is from before or after, and whatever is left of a line is found again.
//
// It never changes the file's size, so that an appender's next line goes where it
// would have gone. A file that was truncated since it was read (copytruncate) is
// noticed before each write: nothing is written beyond its end.
func (c *Caller) overwrite(f *os.File, hits []hit) error {
	if len(hits) == 0 {
		return nil
	}
	steps := []struct {
		name string
		text func(hit) []byte
	}{{"blank", blanked}, {"cover", covered}}
	for i, step := range steps {
		for _, h := range hits {
			was := h.line
			if i > 0 {
				was = steps[i-1].text(h)
			}
			if err := c.replace(f, h.at, was, step.text(h), step.name); err != nil {
				return err
			}
		}
		if err := c.fault("sync " + step.name); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return failed(CodeLogFailed)
		}
	}
	return nil
}

// replace overwrites what is still what it was when it was read.
func (c *Caller) replace(f *os.File, at int64, was, becomes []byte, step string) error {
	now := make([]byte, len(was))
	if n, _ := f.ReadAt(now, at); n < len(was) || !bytes.Equal(now, was) {
		return failed(CodeLogBusy)
	}
	if err := c.fault(step); err != nil {
		return err
	}
	if _, err := f.WriteAt(becomes, at); err != nil {
		return failed(CodeLogFailed)
	}
	return nil
}

// blanked is the line with nothing but what it was found by.
func blanked(h hit) []byte {
	b := bytes.Repeat([]byte{' '}, len(h.line))
	for _, s := range h.spans {
		copy(b[s.from:s.to], h.line[s.from:s.to])
	}
	return b
}

// covered is the line with nothing of it.
func covered(h hit) []byte {
	b := bytes.Repeat([]byte{' '}, len(h.line))
	if len(b) >= len(mark) && h.line[0] == '{' {
		copy(b, mark)
	}
	return b
}

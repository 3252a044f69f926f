package receipts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"forgettable.dev/memd"
)

// maxBytes bounds what Parse and ParseBundle read.
const maxBytes = 8 << 20

// Encode returns the canonical encoding of a receipt, after New. Errors are
// those of New.
func Encode(r Receipt) ([]byte, error) {
	r, err := New(r)
	if err != nil {
		return nil, err
	}
	return marshal(r)
}

// Parse reads a receipt. Only the bytes that Encode writes are one: unknown,
// repeated or differently spelt fields, white space, another order or another
// way to write a number or a string are memd.ErrCorrupt.
func Parse(data []byte) (Receipt, error) {
	var r Receipt
	if err := parse(data, &r, func() ([]byte, error) { return Encode(r) }); err != nil {
		return Receipt{}, fmt.Errorf("reading a receipt: %w", err)
	}
	return r, nil
}

// marshal writes JSON as RFC 8785 has it, for the structs of this package:
// their fields are declared in order, their numbers are integers below 2^53 and
// their strings are printable, so that what is left to do is to escape no more
// than needed.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// parse reads one JSON value into v and demands that encode writes the same
// bytes again. Its errors repeat nothing of the input.
func parse(data []byte, v any, encode func() ([]byte, error)) error {
	if len(data) > maxBytes {
		return corrupt("it is too large")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return corrupt("it is not JSON with the fields of its format")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return corrupt("something follows it")
	}
	again, err := encode()
	if err != nil {
		var invalid *memd.InvalidError
		if errors.As(err, &invalid) {
			return corrupt(invalid.Field + " " + invalid.Problem)
		}
		return corrupt("it cannot be encoded")
	}
	if !bytes.Equal(again, data) {
		return corrupt("its bytes are not canonical")
	}
	return nil
}

// corrupt says what is wrong with something that was read.
func corrupt(what string) error { return fmt.Errorf("%s: %w", what, memd.ErrCorrupt) }

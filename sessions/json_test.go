package sessions_test

import (
	"encoding/json"
	"testing"

	"forgettable.dev/memd/sessions"
)

// FuzzValidJSON: what memd calls JSON is what encoding/json does.
func FuzzValidJSON(f *testing.F) {
	for _, text := range []string{
		``, `"`, `""`, `"\"`, `"\""`, `"\\"`, `"\u00e9 x"`, `"\u00"`, `"\u00zz"`, `"\x"`, `"\`, "\"\x00\"", "\"\n\"", "\"\xff\"", `"a" "b"`,
		`{"a": [1.5e3, null, "x y"], "b": {"c": "\"quoted\" \\ \/ \n"}}`, `{"a" 1}`, `[1,]`, `nul`, `x"y"`, `"a"x`, ` {} `, `{"role":"user","parts":[{"text":"…"}]}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, want := sessions.ValidJSON(text), json.Valid([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	})
}

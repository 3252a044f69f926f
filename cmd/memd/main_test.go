package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"google.golang.org/protobuf/reflect/protoreflect"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// invoke runs the command line in this process against a fake server.
func invoke(t testing.TB, url, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	env := map[string]string{"MEMD_URL": url, "MEMD_API_KEY": fakeKey}
	var out, errs bytes.Buffer
	status = run(t.Context(), args, func(k string) string { return env[k] }, strings.NewReader(stdin), &out, &errs)
	return status, out.String(), errs.String()
}

// TestEveryFlagHasAVariable walks all commands: each has a help line, and each
// flag names its variable there.
func TestEveryFlagHasAVariable(t *testing.T) {
	parser, err := kong.New(new(cli), kong.ExplicitGroups(commandGroups), kong.Vars(witnessDefaults()))
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	err = kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		switch node := node.(type) {
		case *kong.Node:
			if commands++; node.Help == "" {
				t.Errorf("command %s has no help", node.Path())
			}
		case *kong.Flag:
			if node.Name == "help" || node.Name == "version" {
				break
			}
			want := "MEMD_" + strings.ToUpper(strings.ReplaceAll(node.Name, "-", "_"))
			if got := variable(node.Value); got != want {
				t.Errorf("flag --%s has the variable %q, want %q", node.Name, got, want)
			}
			if node.Help == "" || !strings.Contains(helpWithVariable(node.Value), "($"+want+").") {
				t.Errorf("flag --%s has the help %q", node.Name, helpWithVariable(node.Value))
			}
		}
		return next(nil)
	})
	if err != nil || commands < 15 {
		t.Fatalf("visited %d commands: %v", commands, err)
	}
}

func TestEveryReasonHasAdvice(t *testing.T) {
	for n, name := range memdv1.Reason_name {
		if n != 0 && advice[memdv1.Reason(n)] == "" {
			t.Errorf("nothing is said about what to do after %s", name)
		}
	}
}

// TestTenantPolicy_EveryFieldHasAFlag fails when the API's policy grows and the
// command line does not.
func TestTenantPolicy_EveryFieldHasAFlag(t *testing.T) {
	parser, err := kong.New(&struct{ policyFlags }{})
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]bool{}
	for _, f := range parser.Model.Flags {
		flags[f.Name] = true
	}
	wants := func(field protoreflect.Name, name string) {
		if name = strings.ReplaceAll(name, "_", "-"); !flags[name] {
			t.Errorf("policy field %s has no flag --%s", field, name)
		}
	}
	retention := (&memdv1.Retention{}).ProtoReflect().Descriptor()
	fields := (&memdv1.Policy{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i).Name()
		if field == "quota" {
			wants(field, "max-rows")
			wants(field, "max-bytes")
			wants(field, "max-calls")
			continue
		}
		if fields.Get(i).Message() != retention {
			wants(field, string(field))
			continue
		}
		for j := range retention.Fields().Len() { // --session-months, --session-not-before
			wants(field, strings.TrimSuffix(string(field), "retention")+string(retention.Fields().Get(j).Name()))
		}
	}
}

func TestOneLine(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain", "hello", "hello"},
		{"line ends and tabs become a space", " a\r\n\tb\n", "a b"},
		{"escape sequences", "a\x1b[2Jb\x07\x9b31m", "a\ufffd[2Jb\ufffd\ufffd31m"},
		{"direction overrides", "a\u202eb\u2066c", "a\ufffdb\ufffdc"},
		{"other scripts stay", "東京 Zoë 👍", "東京 Zoë 👍"},
		{"invalid UTF-8", "a\xffb", "a\ufffdb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := oneLine(tt.in); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{
		{"hello", 5, "hello"}, {"hello", 4, "hel…"}, {"日本語です", 3, "日本…"}, {"hello", 1, "…"},
	} {
		if got := shorten(tt.in, tt.n); got != tt.want {
			t.Errorf("shorten(%q, %d) = %q, want %q", tt.in, tt.n, got, tt.want)
		}
	}
}

func TestTable_FitsTheTerminal(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out, "A", "TEXT")
	table.fit(30)
	table.row("abcde", strings.Repeat("x", 40))
	table.row("b", "short")
	if err := table.close(); err != nil {
		t.Fatal(err)
	}
	want := "A      TEXT\nabcde  " + strings.Repeat("x", 22) + "…\nb      short\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

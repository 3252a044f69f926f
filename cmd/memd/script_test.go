package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"memd": main})
}

// TestScripts runs the command line as a person would, against a fake server of
// its own for each script.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			_, srv := newFakeServer()
			env.Defer(srv.Close)
			env.Setenv("MEMD_URL", srv.URL)
			env.Setenv("MEMD_API_KEY", fakeKey)
			return customer(env)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits runs a command that must end with the given status: "exits 2 memd …".
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND [ARGUMENT…]")
	}
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	status := 0
	if errors.As(err, &exit) {
		status = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("running %s: %v", args[1], err)
	}
	if fmt.Sprint(status) != args[0] {
		ts.Fatalf("%s ended with status %d, want %s", strings.Join(args[1:], " "), status, args[0])
	}
}

package main

import (
	"strings"

	"github.com/alecthomas/kong"
)

// environment answers a flag that was not given from MEMD_<FLAG>. It is not
// kong's own support, which reads the process's environment behind run's back.
// An empty variable counts as unset.
func environment(getenv func(string) string) kong.Resolver {
	return kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		if name := variable(flag.Value); name != "" {
			if v := getenv(name); v != "" {
				return v, nil
			}
		}
		return nil, nil
	})
}

// variable returns the environment variable of a flag: the one in its tag, else
// MEMD_ and its name. Flags that end the program have none.
func variable(v *kong.Value) string {
	switch {
	case v.Flag == nil, v.Name == "help", v.Name == "version":
		return ""
	case len(v.Tag.Envs) > 0:
		return v.Tag.Envs[0]
	}
	return "MEMD_" + strings.ToUpper(strings.ReplaceAll(v.Name, "-", "_"))
}

// helpWithVariable adds the variable's name to a flag's help.
func helpWithVariable(v *kong.Value) string {
	name := variable(v)
	if name == "" {
		return v.Help
	}
	return strings.TrimSuffix(v.Help, ".") + " ($" + name + ")."
}

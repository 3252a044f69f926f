// Package cleartext holds the test of invariant 1: nothing that a person said
// is at rest in clear. It has no code of its own; it runs a whole memd on a
// folder, says distinctive things to it through every call and every way to
// fail, and then searches every byte that is left.
package cleartext

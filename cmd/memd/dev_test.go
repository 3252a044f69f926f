package main

import (
	"os"
	"strings"
	"testing"
)

// A newcomer copies from the one or the other.
func TestReadme_HasTheCurlThatDevPrints(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```sh\n"+curlExample+"```") {
		t.Error("the README's curl is not what memd dev prints")
	}
}

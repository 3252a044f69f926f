package kmstest_test

import (
	"testing"

	"go.uber.org/goleak"

	"forgettable.dev/memd/shred/kmstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun_Emulator(t *testing.T) {
	kmstest.Run(t, kmstest.StartEmulator(t, "").Harness(t))
}

// Package kmstest is the conformance suite of shred.KMS, and what tests need to
// run it on the emulator.
//
// Run exercises an implementation through the interface alone. It moves no
// clock and injects no fault, so it runs unchanged against Cloud KMS: make a
// Harness of three gcpkms clients, one for each service account. Keys cannot be
// deleted there, so each run leaves some behind, their versions scheduled for
// destruction.
//
// StartEmulator gives a test an emulator of its own on a loopback port.
//
// Only tests import this package.
package kmstest

package demo

import "io"

var Conversations = conversations

type Board struct{ b board }

func NewBoard(out io.Writer) *Board { return &Board{board{out: out}} }

func (b *Board) Check(ok bool, claim, looked string, args ...any) {
	b.b.check(ok, claim, looked, args...)
}

func (b *Board) Result() error { return b.b.result() }

func PerMonth(versions int) string { return perMonth(versions).String() }

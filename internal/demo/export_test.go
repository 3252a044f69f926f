package demo

import (
	"io"
	"time"
)

var Conversations = conversations

type Board struct{ b board }

func NewBoard(out io.Writer) *Board { return &Board{board{out: out}} }

func (b *Board) Check(ok bool, claim, looked string, args ...any) {
	b.b.check(ok, claim, looked, args...)
}

func (b *Board) Result() error { return b.b.result() }

// Bill is what the designs cost: memd's, and the others in their order.
func Bill(tenants, users, months, operations int64, delay time.Duration) (bill []string) {
	i := installation{tenants, users, months}
	for _, d := range append([]design{i.ours(batch{1, operations, delay})}, i.others()...) {
		bill = append(bill, thousands(d.versions)+" "+d.month().String())
	}
	return bill
}

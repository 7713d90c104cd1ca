package failpoint_test

import (
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/fealty-io/fealty/internal/platform/failpoint"
)

func TestNil(t *testing.T) {
	var points *failpoint.Points
	if err := points.Hit("any"); err != nil {
		t.Error(err)
	}
}

func TestFail(t *testing.T) {
	var p failpoint.Points
	other := errors.New("other")
	p.Fail("a", io.EOF)
	p.FailNext("b", 2, other)
	for i, want := range []error{other, other, nil, nil} {
		if err := p.Hit("b"); err != want {
			t.Errorf("hit %d of b: %v, want %v", i, err, want)
		}
		if err := p.Hit("a"); err != io.EOF {
			t.Errorf("hit %d of a: %v", i, err)
		}
		if err := p.Hit("c"); err != nil {
			t.Errorf("hit %d of c: %v", i, err)
		}
	}
	p.Disarm("a")
	if err := p.Hit("a"); err != nil {
		t.Errorf("disarmed: %v", err)
	}
	if n := p.Hits("a"); n != 5 {
		t.Errorf("%d hits of a, want 5", n)
	}
	if got := p.Names(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("names %q", got)
	}
}

func TestArmMayUsePoints(t *testing.T) {
	var p failpoint.Points
	p.Arm("a", func() error {
		p.Disarm("a")
		return p.Hit("b")
	})
	p.Fail("b", io.EOF)
	if err := p.Hit("a"); err != io.EOF {
		t.Error(err)
	}
	if err := p.Hit("a"); err != nil {
		t.Error(err)
	}
}

func TestBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p failpoint.Points
		reached, release := p.Block("a")
		passed := make(chan error, 2)
		for range 2 {
			go func() { passed <- p.Hit("a") }()
		}
		<-reached
		synctest.Wait()
		if len(passed) != 0 {
			t.Fatal("passed a blocked point")
		}
		release()
		release()
		for range 2 {
			if err := <-passed; err != nil {
				t.Error(err)
			}
		}
		if err := p.Hit("a"); err != nil {
			t.Error(err)
		}
	})
}

func TestWatch(t *testing.T) {
	var p failpoint.Points
	p.Fail("b", io.EOF)
	var passed []string
	p.Watch(func(name string) { passed = append(passed, name) })
	_ = p.Hit("b")
	_ = p.Hit("a")
	_ = p.Hit("b")
	p.Watch(nil)
	_ = p.Hit("c")
	if want := []string{"b", "a", "b"}; !slices.Equal(passed, want) {
		t.Errorf("passed were %v, want %v", passed, want)
	}
}

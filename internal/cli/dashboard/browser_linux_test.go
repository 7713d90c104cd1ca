package dashboard_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/test/testlane"
	"github.com/fealty-io/fealty/test/wait"
)

var pictures = flag.String("pictures", "", "write what Chromium shows into this folder")

// chromium is a headless Chromium with one page, driven by the Chrome DevTools Protocol over pipes.
type chromium struct {
	t       testing.TB
	in      io.Writer
	session string

	mu       sync.Mutex
	last     int                         // id of a request; guarded by mu
	answers  map[int]chan map[string]any // guarded by mu
	problems []string                    // what the browser's console was told of; guarded by mu
	gone     bool                        // it ended; guarded by mu
}

// newChromium starts one, which ends with the test.
func newChromium(t testing.TB) *chromium {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("no chromium here, and this test needs a real one: run tools/chromium.sh")
	}
	read, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{read, write} // file descriptors 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read.Close()
	write.Close()
	c := &chromium{t: t, in: in, answers: map[int]chan map[string]any{}}
	var reading sync.WaitGroup
	reading.Go(func() { c.read(out) })
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its own processes too
		_ = cmd.Wait()
		in.Close()
		reading.Wait()
		out.Close()
	})
	target := c.call("Target.createTarget", map[string]any{"url": "about:blank"})
	c.session = c.call("Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})["sessionId"].(string)
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		c.call(domain+".enable", nil)
	}
	return c
}

// read takes in answers and events, each of which ends with a zero byte.
func (c *chromium) read(out io.Reader) {
	in := bufio.NewReader(out)
	for {
		raw, err := in.ReadBytes(0)
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.gone = true
			for _, answer := range c.answers {
				answer <- map[string]any{"error": "Chromium ended"}
			}
			return
		}
		var m struct {
			ID     int
			Method string
			Result map[string]any
			Error  any
			Params json.RawMessage
		}
		if json.Unmarshal(raw[:len(raw)-1], &m) != nil {
			continue
		}
		c.mu.Lock()
		switch {
		case m.ID != 0:
			if m.Error != nil {
				m.Result = map[string]any{"error": m.Error}
			}
			if answer := c.answers[m.ID]; answer != nil {
				answer <- m.Result
				delete(c.answers, m.ID)
			}
		case m.Method == "Log.entryAdded" || m.Method == "Runtime.exceptionThrown":
			c.problems = append(c.problems, string(m.Params))
		}
		c.mu.Unlock()
	}
}

func (c *chromium) call(method string, params map[string]any) map[string]any {
	c.t.Helper()
	answer := make(chan map[string]any, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.answers[id] = answer
	if c.gone {
		answer <- map[string]any{"error": "Chromium ended"}
	}
	c.mu.Unlock()
	raw, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": c.session})
	if c.session == "" {
		raw, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err == nil {
		_, err = c.in.Write(append(raw, 0))
	}
	if err != nil {
		c.t.Fatal(err)
	}
	got := <-answer
	if problem := got["error"]; problem != nil {
		c.t.Fatalf("%s: %v", method, problem)
	}
	return got
}

// eval returns the text that an expression is in the page.
func (c *chromium) eval(expression string) string {
	c.t.Helper()
	got := c.call("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")"})
	value, _ := got["result"].(map[string]any)["value"].(string)
	return value
}

func (c *chromium) open(url string) {
	c.t.Helper()
	c.call("Page.navigate", map[string]any{"url": url})
	wait.Until(c.t, "the page is loaded", func() bool {
		return c.eval("document.readyState") == "complete" && c.eval("location.href") == url
	})
}

// picture keeps what is shown, if somebody wants to see it.
func (c *chromium) picture(name string, width, height int, dark bool) {
	c.t.Helper()
	if *pictures == "" {
		return
	}
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	c.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": scheme}}})
	c.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
	data, err := base64.StdEncoding.DecodeString(c.call("Page.captureScreenshot", nil)["data"].(string))
	if err == nil {
		err = os.WriteFile(filepath.Join(*pictures, name), data, 0o644)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// In a real browser a page that is open shows a change without being loaded again, says when no coordinator answers and when
// the dashboard is gone, keeps its own policy, and is whole without its script.
func TestInChromium(t *testing.T) {
	testlane.Nightly(t) // TestRealCoordinator keeps the promise of the server's side in the quick lane
	f := coordinatortest.ReadyFleet(t, nil)
	f.Member("a")
	f.Member("b")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	b := serveIn(ctx, t, f.C.AdminSocket(), nil)
	c := newChromium(t)
	for _, path := range everyPage {
		c.open(b.url + path)
		if heads := c.eval("document.querySelectorAll('h1').length"); heads != "1" {
			t.Errorf("page %q has %s headings of the first order", path, heads)
		}
		c.picture(fmt.Sprintf("page-%s.png", strings.ReplaceAll(path+"-light", "/", "-")), 1280, 1000, false)
		c.picture(fmt.Sprintf("page-%s.png", strings.ReplaceAll(path+"-narrow", "/", "-")), 400, 1400, true)
	}
	c.open(b.url)
	c.eval("window.stays = 'here'")
	wait.Until(t, "the page hears of versions", func() bool { return c.eval("document.getElementById('main').dataset.live") != "" })
	if _, err := f.Local().Member.BanMember(t.Context(), &fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "lost"}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the page shows the ban", func() bool { return strings.Contains(c.eval("document.body.innerText"), "member.ban") })
	if c.eval("window.stays") != "here" {
		t.Error("the page was loaded again")
	}
	c.mu.Lock()
	problems := slices.Clone(c.problems)
	c.mu.Unlock()
	if len(problems) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(problems, "\n"))
	}

	c.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true})
	c.open(b.url)
	if got := c.eval("document.body.innerText"); !strings.Contains(got, "Cluster "+coordinatortest.Cluster) || !strings.Contains(got, "member.ban") {
		t.Errorf("without its script the page is %s", got)
	}
	c.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": false})

	c.open(b.url)
	f.Stop()
	wait.Until(t, "the page says that no coordinator answers", func() bool {
		return strings.Contains(c.eval("document.body.innerText"), "No coordinator answers. What is shown is as it was")
	})
	c.picture("unreachable.png", 1280, 1000, false)
	end()
	wait.Until(t, "the page says that the stream is lost", func() bool {
		return strings.Contains(c.eval("document.getElementById('lost').innerText"), "The live stream is lost")
	})
	if !strings.Contains(c.eval("document.body.innerText"), coordinatortest.Cluster) {
		t.Error("what was known is gone from the page")
	}
}

// Package browser drives a headless Chromium for tests and experiments.
package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// Browser is a headless Chromium, driven over a pipe (--remote-debugging-pipe): messages of the DevTools protocol, each
// ended by a zero byte.
type Browser struct {
	cmd     *exec.Cmd
	profile string
	in, out *os.File
	replies *bufio.Reader
	last    int
	session string
}

// Start starts a browser on a host, with further flags, and opens a page.
func Start(ctx context.Context, host *testnet.Host, url string, flags ...string) (_ *Browser, err error) {
	b := &Browser{}
	if b.profile, err = os.MkdirTemp("", "chromium-*"); err != nil {
		return nil, err
	}
	b.cmd = host.Command(ctx, "chromium-headless-shell", append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--autoplay-policy=no-user-gesture-required",
		"--user-data-dir=" + b.profile, "--remote-debugging-pipe",
	}, flags...)...)
	if err := b.start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(b.profile))
	}
	if err := b.open(url); err != nil {
		b.Close()
		return nil, fmt.Errorf("chromium: %w", err)
	}
	return b, nil
}

// start starts the program, which reads commands from descriptor 3 and writes replies to 4.
func (b *Browser) start() error {
	commands, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer commands.Close()
	out, replies, err := os.Pipe()
	if err != nil {
		return errors.Join(err, in.Close())
	}
	defer replies.Close()
	b.in, b.out, b.replies = in, out, bufio.NewReader(out)
	b.cmd.ExtraFiles = []*os.File{commands, replies}
	if err := testnet.StartChild(b.cmd); err != nil {
		return errors.Join(err, in.Close(), out.Close())
	}
	return nil
}

// Close ends the browser.
func (b *Browser) Close() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
	b.in.Close()
	b.out.Close()
	os.RemoveAll(b.profile)
}

// open opens a page, which commands go to from then on.
func (b *Browser) open(url string) error {
	var target struct{ TargetID string }
	if err := b.call("Target.createTarget", map[string]any{"url": url}, &target); err != nil {
		return err
	}
	var attached struct{ SessionID string }
	err := b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	if err != nil {
		return err
	}
	return testnet.Until(30*time.Second, "the page in the browser", func() bool {
		begun := false
		err := b.Evaluate("location.href != 'about:blank' && document.readyState != 'loading'", &begun)
		return err == nil && begun // before, there may be nothing that could be asked
	})
}

// call sends a command and waits for its result. Events are passed over.
func (b *Browser) call(method string, params, result any) error {
	b.last++
	command := map[string]any{"id": b.last, "method": method, "params": params}
	if b.session != "" {
		command["sessionId"] = b.session
	}
	message, err := json.Marshal(command)
	if err != nil {
		return err
	}
	if _, err := b.in.Write(append(message, 0)); err != nil {
		return err
	}
	for {
		text, err := b.replies.ReadBytes(0)
		if err != nil {
			return err
		}
		var reply struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(text[:len(text)-1], &reply); err != nil {
			return err
		}
		switch {
		case reply.ID != b.last:
		case reply.Error != nil:
			return fmt.Errorf("%s: %s", method, reply.Error.Message)
		default:
			return json.Unmarshal(reply.Result, result)
		}
	}
}

// Evaluate reads the value of a JavaScript expression in the page; undefined leaves value as it is.
func (b *Browser) Evaluate(expression string, value any) error {
	var reply struct {
		Result struct{ Value json.RawMessage }
	}
	params := map[string]any{"expression": expression, "returnByValue": true}
	err := b.call("Runtime.evaluate", params, &reply)
	if err != nil || reply.Result.Value == nil || value == nil {
		return err
	}
	return json.Unmarshal(reply.Result.Value, value)
}

// Click clicks into the middle of the first element that a CSS selector finds, as a person would.
func (b *Browser) Click(selector string) error {
	quoted, err := json.Marshal(selector)
	if err != nil {
		return err
	}
	var at *struct{ X, Y float64 }
	if err := b.Evaluate(fmt.Sprintf(`(() => {
		const e = document.querySelector(%s);
		if (!e) return null;
		e.scrollIntoView({block: 'center', behavior: 'instant'});
		const r = e.getBoundingClientRect();
		return {x: r.x + r.width / 2, y: r.y + r.height / 2};
	})()`, quoted), &at); err != nil {
		return err
	}
	if at == nil {
		return fmt.Errorf("the page has no %s", selector)
	}
	for _, what := range []string{"mousePressed", "mouseReleased"} {
		event := map[string]any{"type": what, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}
		if err := b.call("Input.dispatchMouseEvent", event, &struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

// Screenshot returns a picture of the page as PNG, of this width and height in pixels.
func (b *Browser) Screenshot(width, height int) ([]byte, error) {
	if err := b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height,
		"deviceScaleFactor": 1, "mobile": false}, &struct{}{}); err != nil {
		return nil, err
	}
	if err := b.Evaluate("window.scrollTo(0, 0)", nil); err != nil {
		return nil, err
	}
	var shot struct{ Data []byte }
	err := b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	return shot.Data, err
}

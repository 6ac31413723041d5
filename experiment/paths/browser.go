package paths

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/fastrelay/fastrelay-gen/internal/test/testnet"
)

// browser is a headless Chromium, driven over a pipe (--remote-debugging-pipe): messages of the DevTools protocol, each
// ended by a zero byte.
type browser struct {
	cmd     *exec.Cmd
	profile string
	in, out *os.File
	replies *bufio.Reader
	last    int
	session string
}

// startBrowser starts a browser on a host, with further flags, and opens a page.
func startBrowser(ctx context.Context, host *testnet.Host, url string, flags ...string) (_ *browser, err error) {
	b := &browser{}
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
		b.close()
		return nil, fmt.Errorf("chromium: %w", err)
	}
	return b, nil
}

// start starts the program, which reads commands from descriptor 3 and writes replies to 4.
func (b *browser) start() error {
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

func (b *browser) close() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
	b.in.Close()
	b.out.Close()
	os.RemoveAll(b.profile)
}

// open opens a page, which commands go to from then on.
func (b *browser) open(url string) error {
	var target struct{ TargetID string }
	if err := b.call("Target.createTarget", map[string]any{"url": url}, &target); err != nil {
		return err
	}
	var attached struct{ SessionID string }
	err := b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	return err
}

// call sends a command and waits for its result. Events are passed over.
func (b *browser) call(method string, params, result any) error {
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

// evaluate reads the value of a JavaScript expression in the page; undefined leaves value as it is.
func (b *browser) evaluate(expression string, value any) error {
	var reply struct {
		Result struct{ Value json.RawMessage }
	}
	params := map[string]any{"expression": expression, "returnByValue": true}
	err := b.call("Runtime.evaluate", params, &reply)
	if err != nil || reply.Result.Value == nil {
		return err
	}
	return json.Unmarshal(reply.Result.Value, value)
}

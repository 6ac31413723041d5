package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/fastrelay/fastrelay-gen/runtime/tool/testnet"
)

// TCP returns the throughput of a connection from a host to an address of another one in 3 s, in Mbit/s (iperf3).
func TCP(from, to *testnet.Host, addr netip.Addr) (float64, error) {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	const port = 5201
	server := to.Command(ctx, "iperf3", "-s", "-1", "-p", fmt.Sprint(port))
	if err := testnet.StartChild(server); err != nil {
		return 0, err
	}
	defer func() {
		_ = server.Process.Kill() // it may have ended
		_ = server.Wait()
	}()
	err := testnet.Until(5*time.Second, "iperf3 listens", func() bool { return to.Listens(port) })
	if err != nil {
		return 0, err
	}
	out, err := from.Command(
		ctx, "iperf3", "-J", "-t", "3", "-c", addr.String(), "-p", fmt.Sprint(port)).Output()
	if err != nil {
		return 0, fmt.Errorf("iperf3: %w: %s", err, out)
	}
	var report struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	err = json.Unmarshal(out, &report)
	return report.End.Received.Rate / 1e6, err
}
